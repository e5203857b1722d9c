"""Own files: one a client, one table for all, folders of images; errors with file and row."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import intarsia
from intarsia.core import DataError
from intarsia.data import Files


def table(rows: int = 20, **columns) -> str:
    header = ["heat", "noise", "label", *columns]
    lines = [",".join(header)]
    for i in range(rows):
        lines.append(
            ",".join(str(v) for v in (i / 10, i % 3, "worn" if i % 2 else "fine", *columns.values()))
        )
    return "\n".join(lines) + "\n"


def load(path: Path, **options):
    return Files(path=str(path), **options).load(0, ())


def test_one_csv_a_client(tmp_path):
    (tmp_path / "truck-1.csv").write_text(table(device="gen1", capacity=0.5))
    (tmp_path / "truck-2.csv").write_text(table(30, device="gen2", capacity=1))
    population = load(tmp_path, validation=0.25)
    assert list(population.clients) == ["truck-1", "truck-2"]
    assert population.labels == ("fine", "worn")
    info = population.infos[0]
    assert (info.device, info.capacity, info.shape) == ("gen1", 0.5, (2,))
    assert info.samples == {"train": 12, "validation": 4, "test": 4}
    data = population.clients["truck-1"].data
    every = torch.cat([e.x[:, 0] for e in data.values()])
    assert sorted(every.tolist()) == pytest.approx([i / 10 for i in range(20)])
    for examples in data.values():
        assert torch.equal(examples.y, (examples.x[:, 0] * 10).round().long() % 2)


def test_one_table_with_a_client_column(tmp_path):
    rows = [f"{i % 3},{i},{i % 2},{'test' if i > 20 else 'train'}" for i in range(30)]
    (tmp_path / "fleet.csv").write_text("client,x,label,split\n" + "\n".join(rows))
    population = load(tmp_path / "fleet.csv")
    assert list(population.clients) == ["0", "1", "2"]
    assert population.labels == ("0", "1")
    assert population.clients["1"].data["test"].x[:, 0].tolist() == [22, 25, 28]
    assert population.clients["1"].data["train"].y.tolist() == [i % 2 for i in range(1, 21, 3)]


def test_parquet_gives_what_csv_gives(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    columns = {"client": ["a"] * 10 + ["b"] * 10, "x": np.arange(20.0), "label": [0, 1] * 10}
    parquet.write_table(pyarrow.table(columns), tmp_path / "t.parquet")
    lines = [f"{c},{x},{y}" for c, x, y in zip(*columns.values(), strict=True)]
    (tmp_path / "t.csv").write_text("client,x,label\n" + "\n".join(lines))
    one, other = load(tmp_path / "t.parquet"), load(tmp_path / "t.csv")
    assert one.split_hash == other.split_hash
    for a, b in zip(one.tensors(), other.tensors(), strict=True):
        assert torch.equal(a, b)
    (tmp_path / "t.parquet").write_bytes(b"no parquet")
    with pytest.raises(DataError, match=r"t\.parquet cannot be read"):
        load(tmp_path / "t.parquet")


def test_whole_floats_and_whole_numbers_are_the_same_labels(tmp_path):
    for name, labels in (("a", ("0", "1")), ("b", ("0.0", "1.0")), ("c", ("-0.0", "1."))):
        (tmp_path / f"{name}.csv").write_text(
            "x,label\n" + "".join(f"{i},{labels[i % 2]}\n" for i in range(10))
        )
    population = load(tmp_path)
    assert population.labels == ("0", "1")
    for client in population.clients.values():
        for examples in client.data.values():
            assert examples.y.tolist() == (examples.x[:, 0].long() % 2).tolist()


REGRESSION = 'for regression set population.problem = "regression"'


@pytest.mark.parametrize(
    ("y", "shown"),
    [
        (np.arange(8) + 0.5, "0.5"),
        ([0.0, 1.0, 2.0, 0.0, 1.0, 2.0, 0.25, 1.0], "0.25"),
        ([0.0, 1.0, 0.0, 1.0, 0.0, 1.0, 0.0, np.nan], "nan"),
        (np.arange(16).reshape(8, 2), r"\[0, 1\]"),
    ],
)
def test_numbers_that_are_not_whole_are_no_labels(y, shown, tmp_path):
    np.savez(tmp_path / "a.npz", x=np.zeros((8, 2)), y=[0, 1] * 4)
    np.savez(tmp_path / "b.npz", x=np.zeros((8, 2)), y=y)
    with pytest.raises(
        DataError,
        match=f"client 'b': labels must be whole numbers or words, one a sample, not {shown}; {REGRESSION}",
    ):
        load(tmp_path)


def test_columns_of_numbers_that_are_not_whole_are_no_labels(tmp_path):
    (tmp_path / "a.csv").write_text("x,label\n" + "".join(f"{i},{i / 4}\n" for i in range(8)))
    with pytest.raises(DataError, match=f"client 'a': .* not 0.25; {REGRESSION}"):
        load(tmp_path)
    assert load(tmp_path, problem="regression").outputs == 1
    (tmp_path / "a.csv").write_text("x,label\n" + "1,0.5\n2,half\n" * 4)
    assert load(tmp_path).labels == ("0.5", "half")


@pytest.mark.parametrize("word", ["01", "1.0.2", "v1.0", "1.0a"])
def test_words_with_digits_stay_words(word, tmp_path):
    (tmp_path / "a.csv").write_text("x,label\n" + f"1,{word}\n2,other\n" * 5)
    assert load(tmp_path).labels == tuple(sorted((word, "other")))


def test_npz(tmp_path):
    x = np.arange(60, dtype=np.float32).reshape(20, 3)
    np.savez(tmp_path / "a.npz", x=x, y=np.arange(20) % 4, device="gen1", cohort="north")
    np.savez(tmp_path / "b.npz", x_train=x[:15], y_train=[0] * 15, x_test=x[15:], y_test=[3] * 5)
    population = load(tmp_path)
    assert (population.infos[0].device, population.infos[0].cohort) == ("gen1", "north")
    assert population.infos[1].samples == {"train": 15, "test": 5}
    assert population.outputs == 4
    assert torch.equal(population.clients["b"].data["test"].x, torch.from_numpy(x[15:]))


def test_regression_and_time(tmp_path):
    lines = [f"{i},{2 * i},{3 * i}" for i in range(20)]
    (tmp_path / "a.csv").write_text("x,speed,load\n" + "\n".join(lines))
    population = load(tmp_path, problem="regression", target="speed, load", order="time")
    data = population.clients["a"].data
    assert data["train"].x[:, 0].tolist() == list(range(16))
    assert data["test"].y.tolist() == [[2 * i, 3 * i] for i in range(16, 20)]
    assert population.outputs == 2
    shuffled = load(tmp_path, problem="regression", target="speed,load")
    assert shuffled.clients["a"].data["train"].x[:, 0].tolist() != list(range(16))


def picture(path: Path, value: int, side: int = 6, mode: str = "RGB") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, (side, side), value if mode == "L" else (value, 0, 0)).save(path)


def test_folders_of_images(tmp_path):
    for client in ("clinic-a", "clinic-b"):
        for number, label in enumerate(("ill", "well")):
            for i in range(5):
                picture(tmp_path / client / label / f"{i}.png", 100 * number + i)
    population = load(tmp_path)
    assert population.labels == ("ill", "well")
    examples = population.clients["clinic-a"].data["train"]
    assert examples.x.shape == (8, 3, 6, 6)
    assert torch.equal((examples.x[:, 0, 0, 0] >= 100).long(), examples.y)
    assert examples.scaling.factor == 1 / 255
    picture(tmp_path / "clinic-b" / "ill" / "9.png", 3, side=7)
    with pytest.raises(
        DataError, match=r"9\.png is \(7, 7, 3\), others are \(6, 6, 3\): set population\.size"
    ):
        load(tmp_path)
    assert load(tmp_path, size=4).infos[0].shape == (3, 4, 4)
    (tmp_path / "clinic-b" / "ill" / "9.png").write_bytes(b"no picture")
    with pytest.raises(DataError, match=r"clinic-b.*9\.png is no image that can be read"):
        load(tmp_path)


def test_a_run_on_own_files(tmp_path):
    for i in range(3):
        (tmp_path / "data").mkdir(exist_ok=True)
        (tmp_path / "data" / f"truck-{i}.csv").write_text(table(40))
    settings = {
        "rounds": 20,
        "population": {"name": "files", "path": str(tmp_path / "data")},
        "model": {"name": "mlp", "hidden": [8]},
        "engine": {"name": "debug", "device": "cpu"},
    }
    run = intarsia.run(settings, out=tmp_path / "run")
    assert run.summary["accuracy"]
    again = intarsia.run(run.path / "settings.toml", out=tmp_path / "again")
    assert again.metrics == run.metrics


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("heat,label\n1,0\n,1\n", "a.csv, line 3, column 'heat': a value is missing"),
        ("heat,label\n1,0\nnan,1\n", "a.csv, line 3, column 'heat': a value is missing"),
        ("heat,label\n1,0\ninf,1\n", "line 3, column 'heat': 'inf' is no finite number"),
        ("heat,label\n1,0\nhot,1\n", "line 3, column 'heat': 'hot' is no finite number"),
        ("heat,label\n1,0\n2\n", "a.csv, line 3: 1 cells, the header has 2"),
        ("heat,label\n1,\n2,1\n", "line 2, column 'label': the label is missing"),
        (
            "heat,target\n1,0\n2,1\n",
            "a.csv: there is no column 'label' to predict; there are: heat, target: set population.target",
        ),
        ("heat,label,split\n1,0,exam\n", "line 2: 'exam' is no split; write train, validation, test"),
        ("heat,label\n", "a.csv has no rows below its header"),
        ("heat,label,split\n1,0,train\n2,1,train\n", "client 'a' has no test data"),
        ("heat,label\n1,0\n", "client 'a' has no t"),
    ],
)
def test_bad_tables_are_named_with_file_and_row(text, message, tmp_path):
    (tmp_path / "a.csv").write_text(text)
    with pytest.raises(DataError) as caught:
        load(tmp_path)
    assert message in str(caught.value)


def test_bad_sources(tmp_path):
    with pytest.raises(DataError, match="does not exist"):
        load(tmp_path / "nowhere")
    with pytest.raises(DataError, match=r"holds no \.npz, \.csv, \.tsv or \.parquet files"):
        load(tmp_path)
    (tmp_path / "a.csv").write_text(table())
    with pytest.raises(
        DataError, match="no column 'client' that names the client; there are: heat, noise, label"
    ):
        load(tmp_path / "a.csv")
    with pytest.raises(DataError, match="no column 'colour'"):
        load(tmp_path, features=("heat", "colour"))
    np.savez(tmp_path / "a.npz", x=np.zeros((2, 2)), y=[0, 1])
    with pytest.raises(DataError, match="two files for client 'a'"):
        load(tmp_path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"x": np.zeros((3, 2))}, "there is no array 'y'; there are: x"),
        ({"x": np.zeros((3, 2)), "y": [0, 1]}, "3 rows in x but 2 in y"),
        ({"x": np.full((3, 2), np.nan), "y": [0, 1, 0]}, "row 0 holds a NaN"),
    ],
)
def test_bad_archives(content, message, tmp_path):
    np.savez(tmp_path / "a.npz", **content)
    with pytest.raises(DataError, match=message):
        load(tmp_path)


def test_a_damaged_archive(tmp_path):
    (tmp_path / "a.npz").write_bytes(b"PK\x03\x04 damaged")
    with pytest.raises(DataError, match=r"a\.npz cannot be read"):
        load(tmp_path)


def test_columns_go_by_name(tmp_path):
    (tmp_path / "one.csv").write_text("a,b,label\n" + "1,2,x\n1,2,y\n" * 5)
    (tmp_path / "two.csv").write_text("b,a,label\n" + "2,1,x\n2,1,y\n" * 5)
    population = load(tmp_path)
    for client in population.clients.values():
        assert client.data["train"].x.unique(dim=0).tolist() == [[1, 2]]
    (tmp_path / "two.csv").write_text("a,c,label\n" + "2,1,x\n" * 5)
    with pytest.warns(
        match=r"one\.csv has a column 'b' and .*two\.csv has none: they are taken for different dev"
    ):
        population = load(tmp_path)
    assert [info.device for info in population.infos] == ["a+b", "a+c"]
    assert load(tmp_path, features=("a",)).infos[1].device == "default"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("heat,label,split\n1,0,train\n2,1,\n3,1,test\n", "some rows say which split they are for"),
        ("heat,label\n1,NA\n2,1\n", "line 2, column 'label': the label is missing"),
        ("heat,heat,label\n1,2,0\n", "two columns 'heat'"),
        ("label\n1\n2\n", "no column to learn from"),
        (
            "heat,label,device\n1,0,a\n2,1,b\n",
            "line 3, column 'device': 'b' differs from 'a' above it; a client has one device",
        ),
        ("heat,label,capacity\n1,0,big\n2,1,big\n", "line 2, column 'capacity': 'big' is no finite number"),
    ],
)
def test_more_bad_tables(text, message, tmp_path):
    (tmp_path / "a.csv").write_text(text)
    with pytest.raises(DataError) as caught:
        load(tmp_path)
    assert message in str(caught.value)


def test_clients_and_targets_of_one_table(tmp_path):
    rows = ["client,x,label"] + [f"{name},{i},{i % 2}" for i in range(8) for name in (" a ", "a")]
    (tmp_path / "t.CSV").write_text("\n".join(rows))
    assert list(load(tmp_path / "t.CSV").clients) == ["a"]
    (tmp_path / "t.CSV").write_text("client,x,label\n,1,0\n")
    with pytest.raises(DataError, match="line 2: the client is missing"):
        load(tmp_path / "t.CSV")
    with pytest.raises(DataError, match="'label' is what is to be predicted"):
        load(tmp_path / "t.CSV", client="x", features=("label",))


@pytest.mark.parametrize(
    ("labels", "names"),
    [
        ([0, 1, 2], ("0", "1", "2")),
        ([1, 2], ("0", "1", "2")),
        ([1000, 2000], ("1000", "2000")),
        ([123456789, 5], ("5", "123456789")),
        ([-1, 1], ("-1", "1")),
        (["01", "02"], ("01", "02")),
        ([b"a", b"b"], ("a", "b")),
        ([0.0, 1.0], ("0", "1")),
        ([[0], [1]], ("0", "1")),
        ([True, False], ("False", "True")),
    ],
)
def test_labels_of_many_kinds(labels, names, tmp_path):
    np.savez(tmp_path / "a.npz", x=np.zeros((10 * len(labels), 2)), y=np.asarray(labels * 10))
    assert load(tmp_path).labels == names


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"x": np.asarray(["a", "b"]), "y": [0, 1]}, "x must be numbers"),
        ({"x": np.zeros((3, 2)), "y": 1}, "one row a sample"),
        ({"x": np.zeros((2, 2)), "y": [0.5, np.nan]}, "a NaN or an infinity"),
    ],
)
def test_more_bad_archives(content, message, tmp_path):
    np.savez(tmp_path / "a.npz", **content)
    with pytest.raises(DataError, match=message):
        load(tmp_path, problem="regression", order="time", test=0.5)


def test_validation_by_its_short_name_and_integers(tmp_path):
    x = np.ones((4, 2), dtype=np.uint16)
    np.savez(
        tmp_path / "a.npz", x_train=x, y_train=[0, 1, 0, 1], x_val=x, y_val=[0] * 4, x_test=x, y_test=[1] * 4
    )
    population = load(tmp_path)
    assert population.infos[0].samples == {"train": 4, "validation": 4, "test": 4}
    assert population.clients["a"].data["train"].x.dtype == torch.float32
    assert list(load(tmp_path / "a.npz").clients) == ["a"]
    (tmp_path / "a.xlsx").write_bytes(b"PK")
    with pytest.raises(DataError, match=r"holds no .* save a table as \.csv"):
        load(tmp_path / "a.xlsx")


def test_tables_are_standardised_if_asked(tmp_path):
    (tmp_path / "a.csv").write_text(table(40))
    x = load(tmp_path, scale="standard").clients["a"].data["train"].x
    torch.testing.assert_close(x.mean(0), torch.zeros(2), atol=1e-5, rtol=0)
    torch.testing.assert_close(x.std(0, correction=0), torch.ones(2), atol=1e-5, rtol=0)


def test_training_rows_of_all_clients_standardise_every_row(tmp_path):
    (tmp_path / "a.csv").write_text("x,label,split\n1,0,train\n3,1,train\n9,0,test\n")
    (tmp_path / "b.csv").write_text("x,label,split\n5,0,train\n7,1,train\n4,0,test\n")
    population = load(tmp_path, scale="standard")
    deviation = 5**0.5  # of 1, 3, 5, 7, whose mean is 4
    expected = {"a": ([-3, -1], [5]), "b": ([1, 3], [0])}
    for name, (train, test) in expected.items():
        data = population.clients[name].data
        assert data["train"].x[:, 0].tolist() == pytest.approx([v / deviation for v in train])
        assert data["test"].x[:, 0].tolist() == pytest.approx([v / deviation for v in test])


def timestamps(path: Path, kind: str) -> Path:
    """Forty seconds at two clients: float32 counts in steps of 128 there."""
    times = [1_700_000_000 + i for i in range(40)]
    for name, own in (("a", times[::2]), ("b", times[1::2])):
        if kind == "csv":
            rows = "".join(f"{t},{i % 3},{i % 2}\n" for i, t in enumerate(own))
            (path / f"{name}.csv").write_text("time,noise,label\n" + rows)
        else:
            x = np.stack([own, np.arange(20) % 3], axis=1).astype(kind)
            np.savez(path / f"{name}.npz", x=x, y=np.arange(20) % 2)
    return path


@pytest.mark.parametrize("kind", ["csv", "float64", "uint64", "int64"])
def test_timestamps_are_standardised_before_they_are_rounded(kind, tmp_path):
    population = load(timestamps(tmp_path, kind), scale="standard")
    times = torch.cat([e.x[:, 0] for c in population.clients.values() for e in c.data.values()])
    assert times.dtype == torch.float32
    steps = times.sort().values.diff()
    assert len(steps) == 39
    torch.testing.assert_close(steps, steps[:1].expand(39), atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    ("kind", "column"), [("csv", "column 'time'"), ("float64", r"x\[:, 0\]"), ("uint64", r"x\[:, 0\]")]
)
def test_timestamps_that_float32_would_merge_are_refused(kind, column, tmp_path):
    """From 1,700,000,000 (13,281,250 * 128) on, forty seconds are one number."""
    with pytest.raises(
        DataError,
        match=rf"{column} has 40 different values, of which float32 can tell 1 apart: "
        r"set population\.scale = .standard., or subtract an offset",
    ):
        load(timestamps(tmp_path, kind))


@pytest.mark.parametrize(
    "values",
    [
        np.arange(40) * 128 + 1.7e9,  # whole steps of float32
        np.arange(40) * 1e8 + 1.7e9 + 1,  # far apart beside what is rounded off
        np.where(np.arange(40) % 2, 0.3, 0.1 + 0.2),  # one number but for float64's own rounding
        np.tile([0.1, 0.7], 20) + np.arange(40) * 1e-15,  # two numbers but for rounding
        np.full(40, 0.1),
        np.linspace(-1, 1, 40) * 1e-30,
    ],
)
def test_what_float32_rounds_off_is_mostly_nothing(values, tmp_path):
    np.savez(tmp_path / "a.npz", x=values[:, None], y=np.arange(40) % 2)
    x = torch.cat([e.x for e in load(tmp_path).clients["a"].data.values()])
    assert sorted(x[:, 0].tolist()) == sorted(values.astype(np.float32).tolist())


def test_archives_with_unlike_or_no_rows(tmp_path):
    y = [0, 1]
    np.savez(tmp_path / "a.npz", x_train=np.ones((2, 3)), y_train=y, x_test=np.ones((2, 4)), y_test=y)
    with pytest.raises(DataError, match=r"rows of x_test have shape \(4,\), those before have \(3,\)"):
        load(tmp_path)
    np.savez(tmp_path / "a.npz", x=np.ones((0, 3)), y=[])
    with pytest.raises(DataError, match=r"a\.npz has no rows in x"):
        load(tmp_path)
    np.savez(tmp_path / "a.npz", x=np.ones((9, 3)), y=[0, 1, 2] * 3)
    np.savez(tmp_path / "b.npz", x=np.ones((9, 4)), y=[0, 1, 2] * 3)
    assert [info.shape for info in load(tmp_path).infos] == [(3,), (4,)]
    with pytest.raises(DataError, match="scale_by: clients' inputs differ in shape"):
        load(tmp_path, scale="standard")


def test_bytes_are_scaled_in_folders_of_images_only(tmp_path):
    pixels = np.tile(np.asarray([0, 255], dtype=np.uint8), (10, 1))
    labels = np.arange(10) % 2
    np.savez(tmp_path / "a.npz", x=pixels, y=labels)
    given = {"a": {"train": (pixels, labels), "test": (pixels, labels)}}
    for population in (load(tmp_path), intarsia.from_dict(given)):
        examples = population.clients["a"].data["train"]
        assert examples.scaling is None
        assert examples.x.dtype == torch.float32
        assert examples.x[0].tolist() == [0, 255]
    for i in range(10):
        picture(tmp_path / "folders" / "a" / str(i % 2) / f"{i}.png", 255)
    examples = load(tmp_path / "folders").clients["a"].data["train"]
    scaled = examples.scaling.apply(examples.x.permute(0, 2, 3, 1))
    assert scaled[0, 0, 0].tolist() == [1, -1, -1]


def test_sixteen_bits_are_scaled_and_grey_joins_colour(tmp_path):
    values = np.linspace(0, 65535, 36).reshape(6, 6).astype(np.uint16)
    for i in range(5):
        folder = tmp_path / "clinic" / "ill"
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(values).save(folder / f"{i}.png")
        picture(tmp_path / "clinic" / "well" / f"{i}.png", 7)
    examples = load(tmp_path).clients["clinic"].data["train"]
    assert examples.x.shape[1:] == (3, 6, 6)
    deep = examples.x[examples.y == 0][0, 0].flatten().long()
    assert torch.equal(deep, torch.from_numpy(np.round(values.flatten() / 257)).long())


def test_regression_is_shown(tmp_path):
    from intarsia.data import who_holds_what
    from intarsia.report import page, view
    from intarsia.report.pictures import partition_picture

    (tmp_path / "data").mkdir()
    for name in "ab":
        (tmp_path / "data" / f"{name}.csv").write_text("x,y\n" + "\n".join(f"{i},{2 * i}" for i in range(10)))
    settings = {
        "rounds": 1,
        "population": {
            "name": "files",
            "path": str(tmp_path / "data"),
            "problem": "regression",
            "target": "y",
        },
        "training": {"lr": 0.001},
        "engine": {"name": "debug", "device": "cpu"},
    }
    run = intarsia.run(settings, out=tmp_path / "run")
    partition_picture(who_holds_what(run.experiment.setup.population), "t", tmp_path / "p.png")
    assert (tmp_path / "p.png").exists()
    assert "Who holds what" in page("t", "l", [view(run)])
