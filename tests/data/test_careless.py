"""Tables as careless people have them: read rightly, or refused with a cure; nothing is silent."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest

from intarsia.core import DataError, IntarsiaWarning
from intarsia.data import Files
from intarsia.data.tables import read_table

PLAIN = "client,heat,label\n" + "".join(
    f"{'ab'[i % 2]},{i + 0.5},{'ok' if i // 2 % 2 else 'bad'}\n" for i in range(24)
)


def load(path: Path, **options):
    return Files(path=str(path), **options).load(0, ())


def hash_of(path: Path, text: str | bytes, **options) -> str:
    file = path / "t.csv"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return load(file, **options).split_hash


WAYS = {
    "byte order mark": PLAIN.encode("utf-8-sig"),
    "UTF-16 from Excel": PLAIN.encode("utf-16"),
    "Windows line ends": PLAIN.replace("\n", "\r\n"),
    "old Mac line ends": PLAIN.replace("\n", "\r"),
    "semicolons": PLAIN.replace(",", ";"),
    "tabs": PLAIN.replace(",", "\t"),
    "decimal commas": PLAIN.replace(",", ";").replace(".", ","),
    "quoted decimal commas": "\n".join(
        ",".join(f'"{cell.replace(".", ",")}"' for cell in line.split(","))
        for line in PLAIN.split("\n")
        if line
    ),
    "quoted cells": "\n".join(
        ",".join(f'"{c}"' for c in line.split(",")) for line in PLAIN.split("\n") if line
    ),
    "spaces": PLAIN.replace(",", " , "),
    "empty lines": PLAIN.replace("\n", "\n\n"),
    "empty lines of commas": PLAIN + ",,\n,,\n",
    "a comma at the end of lines": PLAIN.replace("\n", ",\n"),
    "a column of row numbers": "\n".join(
        f"{i - 1 if i else ''},{line}" for i, line in enumerate(PLAIN.strip().split("\n"))
    ),
    "plus signs and powers of ten": PLAIN.replace(",1.5,", ",+1.5e0,"),
    "an empty column": "\n".join(
        line + (",note" if i == 0 else ",") for i, line in enumerate(PLAIN.strip().split("\n"))
    ),
}


@pytest.mark.parametrize("way", WAYS)
def test_the_same_table_in_many_ways(way, tmp_path):
    assert hash_of(tmp_path, WAYS[way]) == hash_of(tmp_path, PLAIN)


def test_the_encoding_of_windows(tmp_path):
    text = "client,heat,label\n" + "Köln,1,müde\nKöln,2,wach\n" * 6
    assert hash_of(tmp_path, text.encode("cp1252")) == hash_of(tmp_path, text)
    assert load(tmp_path / "t.csv").labels == ("müde", "wach")


def test_thousands(tmp_path):
    whole = PLAIN.replace(".5,", "000,")
    apart = "\n".join(";".join(line.split(",")) for line in whole.split("\n")).replace("000;", ",000;")
    assert hash_of(tmp_path, apart, decimal=".") == hash_of(tmp_path, whole)
    (tmp_path / "t.csv").write_text('a,b\n"1,234.5",1\n"12,345",2\n')
    from intarsia.data.cells import numbers

    assert numbers(read_table(tmp_path / "t.csv").columns["a"])[0].tolist() == [1234.5, 12345]
    (tmp_path / "t.csv").write_text("a;b\n1.234,5;1\n12.345,0;2\n")
    assert numbers(read_table(tmp_path / "t.csv").columns["a"])[0].tolist() == [1234.5, 12345]


@pytest.mark.parametrize("mark", ["", "NA", "n/a", "-", "?", "NaN", "null", "None", "#N/A", " "])
def test_marks_of_missing_values(mark, tmp_path):
    gap = PLAIN.replace("b,1.5", f"b,{mark}")
    assert hash_of(tmp_path, gap, missing="mean") == hash_of(
        tmp_path, PLAIN.replace("b,1.5", "b,"), missing="mean"
    )
    with pytest.raises(DataError, match=r"line 3, column 'heat': .* set population\.missing"):
        load(tmp_path / "t.csv")


REFUSED = [
    ("", r"t\.csv is empty: give it a header and rows"),
    (" \n\n", r"t\.csv is empty"),
    ("client,heat,label\n", "no rows below its header: add rows"),
    (
        "1,2.5,0\n2,3.5,1\n",
        "numbers where the names of its columns should be .*write a first line with a name",
    ),
    ("client,heat,heat,label\na,1,2,0\n", "two columns 'heat': rename or delete one"),
    ("client,heat,,label\na,1,x,0\n", "a column has no name: write one above it"),
    (
        PLAIN.replace("b,1.5", "b,warm"),
        r"line 3, column 'heat': 'warm' is no finite number: put the cell right",
    ),
    (PLAIN.replace("b,1.5", "b,inf"), "line 3, column 'heat': 'inf' is no finite number: put the cell right"),
    (PLAIN.replace("b,1.5,bad", "b,1.5,"), r"the label is missing: .*population\.unlabelled = \"drop\""),
    (PLAIN + "c,1,ok\n", "client 'c' has no t.* data: give it some, or leave the client out"),
    (PLAIN + ",1,ok\n", "line 26: the client is missing: name it, or delete the row"),
    (PLAIN + "a,1\n", "line 26: 2 cells, the header has 3: put right the line"),
    (
        PLAIN.replace("client", "truck"),
        r"no column 'client' .* there are: truck, heat, label: set population\.client",
    ),
    (PLAIN.replace("label", "state"), r"no column 'label' to predict; .*set population\.target"),
    (b"PK\x03\x04\x00\x00", "it is no text; save the table as"),
]


@pytest.mark.parametrize(("text", "message"), REFUSED)
def test_what_is_refused_has_a_cure(text, message, tmp_path):
    with pytest.raises(DataError, match=message):
        hash_of(tmp_path, text)


def test_a_client_with_one_row_can_be_left_out(tmp_path):
    assert hash_of(tmp_path, PLAIN + "c,1,ok\n", min_rows=5) == hash_of(tmp_path, PLAIN)
    with pytest.raises(DataError, match="no client has 100 rows: lower it"):
        load(tmp_path / "t.csv", min_rows=100)
    assert hash_of(tmp_path, PLAIN + "a,1,\n", unlabelled="drop") == hash_of(tmp_path, PLAIN)


def test_labels_that_look_alike_are_told(tmp_path):
    mixed = PLAIN.replace("2.5,ok", "2.5,OK ").replace("6.5,ok", "6.5,Ok")
    with pytest.warns(
        IntarsiaWarning, match=r"'OK' and 'Ok' and 'ok' look alike .*population\.relabel = \{ \"OK\" = \"ok\""
    ):
        hash_of(tmp_path, mixed)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert hash_of(tmp_path, mixed, relabel={"OK": "ok", "Ok": "ok"}) == hash_of(tmp_path, PLAIN)


def test_a_label_in_test_rows_alone_is_a_label(tmp_path):
    rows = "client,heat,label,split\na,1,ok,train\na,2,bad,train\na,3,worse,test\n"
    (tmp_path / "t.csv").write_text(rows)
    population = load(tmp_path / "t.csv")
    assert population.labels == ("bad", "ok", "worse")
    assert population.clients["a"].data["test"].y.tolist() == [2]


def at(*moments: str) -> str:
    return "client,at,heat,label\n" + "".join(f"a,{m},{i},{i % 2}\n" for i, m in enumerate(moments))


@pytest.mark.parametrize(
    "moments",
    [
        [f"2024-03-{d:02}T10:00:00Z" for d in range(20, 10, -1)],
        [f"{d:02}.03.2024 10:00" for d in range(20, 10, -1)],
        [f"03/{d:02}/2024" for d in range(20, 10, -1)],
        [f"2024/03/{d:02}" for d in range(20, 10, -1)],
        [str(1_709_251_200 + 86400 * d) for d in range(20, 10, -1)],
        [str(1000 * (1_709_251_200 + 86400 * d)) for d in range(20, 10, -1)],
    ],
)
def test_dates_in_many_forms_are_an_order(moments, tmp_path):
    (tmp_path / "t.csv").write_text(at(*moments))
    population = load(tmp_path / "t.csv", time="at", order="time")
    assert population.clients["a"].data["train"].x[:, 0].tolist() == list(range(9, 1, -1))


@pytest.mark.parametrize(
    ("moments", "message"),
    [
        (
            ["2024-03-01", "02.03.2024", "2024-03-03"],
            r"line 3, column 'at': '02\.03\.2024' is no time, or written in",
        ),
        (
            ["01/02/2024", "02/03/2024", "03/04/2024"],
            r"read in two ways: set population\.time_form = \"%d/%m/%Y\" or",
        ),
        (["2024-03-01", "", "2024-03-03"], "line 3, column 'at': the time is missing: put it right"),
        (["soon", "later", "never"], "line 2, column 'at': 'soon' is no time"),
    ],
)
def test_dates_that_cannot_be_ordered_are_refused(moments, message, tmp_path):
    (tmp_path / "t.csv").write_text(at(*moments))
    with pytest.raises(DataError, match=message):
        load(tmp_path / "t.csv", time="at", order="time")
    if "two ways" in message:
        assert load(tmp_path / "t.csv", time="at", time_form="%m/%d/%Y", order="time", test=0.4)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"features": ("heet",)}, "population.features: there is no column 'heet'; did you mean 'heat'"),
        ({"ignore": ("hat",)}, "population.ignore: there is no column 'hat'; did you mean 'heat'"),
        ({"words": {"hat": ()}}, "population.words: there is no column 'hat'"),
        ({"time_parts": ("hour",)}, r"say which column holds the time \(population.time\)"),
        ({"gap": 5.0}, r"population.gap: say which column holds the time"),
        ({"ignore": ("heat",)}, "no column to learn from"),
        ({"time": "heat", "time_form": "tomorrow"}, "'tomorrow' is no form: write iso, seconds"),
    ],
)
def test_settings_that_name_what_is_not_there(options, message, tmp_path):
    with pytest.raises(DataError, match=message):
        hash_of(tmp_path, PLAIN, **options)
