"""What becomes of raw readings: worked numbers for every rule, and the way to JSON and back."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from intarsia.core import DataError
from intarsia.data.population import Scaling
from intarsia.data.preparation import Column, Pictures, Preparation, carried, preparations_of, window_rows
from intarsia.data.tables import Table

NAN = math.nan


def table(**columns: list[str]) -> Table:
    count = len(next(iter(columns.values())))
    return Table("t.csv", columns, range(2, 2 + count))


def same(found, expected) -> None:
    np.testing.assert_array_equal(found, np.asarray(expected, dtype=np.float64))


def test_numbers_are_filled_then_scaled():
    column = Column("heat", fill=4.0, offset=2.0, scale=0.5)
    raw = column.raw(table(heat=["3", "n/a", " 1e1 ", "1,234"]))
    same(raw, [3, NAN, 10, 1234])
    same(column.apply(raw)[:, 0], [2, 4, 16, 2464])


def test_a_missing_value_without_a_rule_is_refused():
    with pytest.raises(DataError, match=r"'heat' has missing values: set population\.missing"):
        Column("heat").apply(np.asarray([1.0, NAN]))


def test_words_are_inputs_of_their_own_and_unknown_ones_are_none_of_them():
    column = Column("colour", "words", words=("blue", "red"), fill=-1.0)
    raw = column.raw(table(colour=["red", "blue", "green", ""]))
    same(raw, [1, 0, -1, NAN])
    same(column.apply(raw), [[0, 1], [1, 0], [0, 0], [0, 0]])
    assert column.inputs == ("colour=blue", "colour=red")


def test_parts_of_a_time():
    moments = table(at=["2024-02-29 06:30:00", "2024-03-01T00:00:00Z", ""])  # a Thursday and a Friday
    same(Column("at", "time", form="iso").raw(moments), [1709188200, 1709251200, NAN])
    same(Column("at", "time", form="iso", part="hour").raw(moments), [6.5, 0, NAN])
    same(Column("at", "time", form="iso", part="weekday").raw(moments), [3, 4, NAN])
    german = table(at=["29.02.2024 06:30", "01.03.2024 00:00"])
    same(Column("at", "time", form="%d.%m.%Y %H:%M").raw(german), [1709188200, 1709251200])
    with pytest.raises(DataError, match=r"t\.csv, line 3, column 'at': 'soon' is no time"):
        Column("at", "time", form="iso").raw(table(at=["2024-02-29", "soon"]))


def test_missing_values_are_carried():
    same(carried(np.asarray([NAN, 1, NAN, NAN, 2, NAN])), [NAN, 1, 1, 1, 2, 2])
    made = Preparation((Column("a", carry=True, fill=9.0),)).raw(table(a=["?", "1", "", "2"]))
    same(made[:, 0], [NAN, 1, 1, 2])
    same(Preparation((Column("a", carry=True, fill=9.0),)).apply(made)[:, 0], [9, 1, 1, 2])


def test_windows():
    assert window_rows(5, 3, 2).tolist() == [[0, 1, 2], [2, 3, 4]]
    assert window_rows(2, 3, 1).shape == (0, 3)
    series = Preparation((Column("a"), Column("b", scale=10.0)), window=2, stride=1)
    raw = series.raw(table(a=["1", "2", "3"], b=["10", "20", "30"]))
    same(raw, [[[1, 10], [2, 20]], [[2, 20], [3, 30]]])
    same(series.apply(raw), [[[1, 1], [2, 2]], [[2, 2], [3, 3]]])
    assert series.shape == (2, 2)


def test_arithmetic_is_float64_and_rounded_once():
    column = Column("t", offset=1.7e9, scale=3.0)
    raw = np.asarray([1.7e9 + 1, 1.7e9 + 2])
    made = Preparation((column,)).apply(raw[:, None])
    assert made.dtype == np.float32
    assert made[:, 0].tolist() == [np.float32(1 / 3), np.float32(2 / 3)]


def test_a_wrong_cell_is_named_with_a_cure():
    with pytest.raises(DataError) as caught:
        Column("heat").raw(table(heat=["1", "hot"]))
    assert "t.csv, line 3, column 'heat': 'hot' is no finite number" in str(caught.value)
    assert 'population.ignore = ["heat"]' in str(caught.value)
    with pytest.raises(DataError, match="column 'noise' is missing, the model was trained with it"):
        Preparation((Column("noise"),)).raw(table(heat=["1"]))


def test_regression_comes_back_in_the_units_of_the_table():
    made = Preparation((Column("a"),), targets=(Column("y", offset=100.0, scale=5.0), Column("z")))
    same(made.predicted(np.asarray([[2.0, 7.0]], np.float32)), [[110, 7]])


PREPARATIONS = [
    Preparation(
        (
            Column("heat", fill=0.1 + 0.2, offset=1 / 3, scale=1e-17),
            Column("colour", "words", fill=-1.0, words=("blue", "grün")),
            Column("at", "time", form="%d.%m.%Y", part="hour", carry=True),
        ),
        window=3,
        stride=2,
        targets=(Column("y", offset=0.7),),
    ),
    Pictures(4, 6, 3, Scaling(1 / 255, (0.5,) * 3, (0.25,) * 3)),
]


@pytest.mark.parametrize("made", PREPARATIONS)
def test_json_and_back(made):
    assert type(made).from_json(json.loads(json.dumps(made.to_json()))) == made


def test_a_run_folder_says_who_has_which():
    about = {
        "preparations": [one.to_json() for one in PREPARATIONS],
        "clients": {"a": {"preparation": 1}, "b": {"preparation": 0}, "c": {}},
    }
    assert preparations_of(json.loads(json.dumps(about))) == {"a": PREPARATIONS[1], "b": PREPARATIONS[0]}
    assert preparations_of({}) == {}


def test_pictures_are_sized_and_scaled_as_in_training(tmp_path):
    import torch
    from PIL import Image

    Image.new("L", (3, 2), 255).save(tmp_path / "a.png")
    Image.new("RGB", (6, 4), (0, 128, 255)).save(tmp_path / "b.png")
    made = Pictures(4, 6, 3, Scaling(1 / 255, (0.5,) * 3, (0.5,) * 3))
    raw = made.raw([tmp_path / "a.png", tmp_path / "b.png"])
    assert raw.shape == (2, 3, 4, 6)
    x = made.apply(raw)
    assert x[0].min() == x[0].max() == 1
    trained = made.scaling.apply(torch.from_numpy(raw).permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
    np.testing.assert_array_equal(x, trained.numpy())
    assert Pictures(2, 2, 1, made.scaling).raw([tmp_path / "b.png"]).shape == (1, 1, 2, 2)
