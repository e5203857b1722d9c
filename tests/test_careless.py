"""The mistakes of a careless user: each ends in an error that says what, where and what to do, or in a warning."""

from __future__ import annotations

import csv
import dataclasses
import os
import re
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import nn
from typer.testing import CliRunner

import intarsia
from intarsia.cli.app import app
from intarsia.core import IntarsiaError, IntarsiaWarning
from intarsia.methods.fedprox import FedProx
from intarsia.training import Proximal

HEADER = ["client", "heat", "wear", "label"]
SETTINGS = {
    "name": "careless",
    "rounds": 1,
    "method": "fedavg",
    "model": {"name": "mlp", "hidden": [4]},
    "training": {"lr": 0.1, "batch_size": 8},
    "engine": {"name": "debug", "device": "cpu"},
}
Rows = list[list[str]]


def good_rows() -> Rows:
    """Three machines, twenty rows each: one is `bad` where it is hot."""
    draw = np.random.default_rng(4)
    heat = draw.normal(size=(60, 2))
    return [
        [f"m{i % 3}", f"{h:.4f}", f"{w:.4f}", "bad" if h > 0 else "ok"]
        for i, (h, w) in enumerate(heat.tolist())
    ]


class Desk:
    """A user's working folder, with a table and what is done with it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.rows, self.header = good_rows(), list(HEADER)

    def put(self, column: str, value: Callable[[int, list[str]], str]) -> None:
        """Put a column before the others."""
        self.rows = [[value(i, row), *row] for i, row in enumerate(self.rows)]
        self.header = [column, *self.header]

    def change(self, column: str, value: Callable[[int, str], str]) -> None:
        """Change the cells of a column."""
        at = self.header.index(column)
        self.rows = [[*row[:at], value(i, row[at]), *row[at + 1 :]] for i, row in enumerate(self.rows)]

    def table(self, name: str = "fleet.csv") -> str:
        """Write the table."""
        with (self.folder / name).open("w", newline="") as file:
            csv.writer(file).writerows([self.header, *self.rows] if self.header else [])
        return str(self.folder / name)

    def run(self, *changes: str, **population: Any) -> intarsia.Run:
        """Run with the table."""
        settings = {**SETTINGS, "population": {"name": "files", "path": self.table(), **population}}
        return intarsia.run(settings, changes=changes, out=self.folder / "run")

    def given(self, *changes: str, data: Any = None, **given: Any) -> intarsia.Run:
        """Run with data from Python."""
        out = self.folder / "run"
        return intarsia.run(SETTINGS, data=data or arrays(), changes=changes, out=out, **given)


def arrays(
    classes: int = 2, first: int = 0, names: tuple[Any, ...] = ("a", "b")
) -> dict[Any, dict[str, Any]]:
    draw = np.random.default_rng(1)

    def some(count: int) -> tuple[Any, Any]:
        x = draw.normal(size=(count, 3)).astype(np.float32)
        return x, first + np.arange(count) % classes

    return {name: {"train": some(12), "test": some(6)} for name in names}


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> intarsia.Run:
    """A run that went well."""
    return Desk(tmp_path_factory.mktemp("done")).run(scale="standard")


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


def refused(mistake: Callable[[], Any], *said: str) -> None:
    """Check that a mistake is refused, in words that say what, where and what to do."""
    with pytest.raises(IntarsiaError) as caught:
        mistake()
    for words in said:
        assert re.search(words, str(caught.value)), f"{words!r} is not in: {caught.value}"


def told(mistake: Callable[[], Any], *said: str) -> None:
    """Check that a warning tells of a mistake, in words that say what, where and what to do."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        mistake()
    texts = [str(warning.message) for warning in caught if issubclass(warning.category, IntarsiaWarning)]
    fitting = [text for text in texts if all(re.search(words, text) for words in said)]
    assert fitting, f"{said} are not in one of: {texts}"


def test_nothing_is_told_of_what_is_right(done, desk):
    with warnings.catch_warnings():
        warnings.simplefilter("error", IntarsiaWarning)
        warnings.simplefilter("ignore", intarsia.JudgedWarning)
        desk.run(scale="standard")
        Desk(desk.folder / "second").folder.mkdir()
        Desk(desk.folder / "second").given()


def text_in_a_number(i: int, cell: str) -> str:
    return "warm" if i == 7 else cell


TABLES: Mapping[str, tuple[Callable[[Desk], Any], tuple[str, ...]]] = {
    "the client column is called otherwise": (
        lambda d: (d.header.__setitem__(0, "machine"), d.run()),
        ("no column 'client'", r"fleet\.csv", r"set population\.client"),
    ),
    "the target column is called otherwise": (
        lambda d: d.run(target="state"),
        ("no column 'state'", r"fleet\.csv", r"set population\.target"),
    ),
    "a feature is misspelt": (
        lambda d: d.run(features=["heet"]),
        ("no column 'heet'", r"population\.features", "did you mean 'heat'"),
    ),
    "a cell is empty": (
        lambda d: (d.change("heat", lambda i, c: "" if i == 7 else c), d.run()),
        ("value is missing", "line 9, column 'heat'", r"set population\.missing"),
    ),
    "a cell says NaN": (
        lambda d: (d.change("heat", lambda i, c: "NaN" if i == 7 else c), d.run()),
        ("value is missing", "line 9, column 'heat'", r"set population\.missing"),
    ),
    "text in a number column": (
        lambda d: (d.change("heat", text_in_a_number), d.run()),
        ("'warm' is no finite number", "line 9, column 'heat'", "put the cell right"),
    ),
    "a client has one row": (
        lambda d: (d.rows.append(["m9", "1", "1", "ok"]), d.run()),
        ("has no t.* data", "client 'm9'", "leave the client out"),
    ),
    "a column is there twice": (
        lambda d: (d.put("heat", lambda i, row: row[1]), d.run()),
        ("two columns 'heat'", r"fleet\.csv", "rename or delete one"),
    ),
    "the file is empty": (
        lambda d: (d.header.clear(), d.run()),
        ("is empty", r"fleet\.csv", "give it a header and rows"),
    ),
    "the file is not there": (
        lambda d: intarsia.run(
            {**SETTINGS, "population": {"name": "files", "path": "flet.csv"}}, out=d.folder / "r"
        ),
        ("does not exist", r"population\.path: .*flet\.csv", "put right the path"),
    ),
    "numbers are predicted as labels": (
        lambda d: (d.change("label", lambda i, c: str(i + 0.5)), d.run()),
        ("whole numbers or words", "client 'm0'", r'set population\.problem = "regression"'),
    ),
}


@pytest.mark.parametrize("mistake", TABLES)
def test_a_table_that_is_refused(mistake, desk):
    make, said = TABLES[mistake]
    refused(lambda: make(desk), *said)


DOUBTED: Mapping[str, tuple[Callable[[Desk], Any], tuple[str, ...]]] = {
    "labels are written in two ways": (
        lambda d: (d.change("label", lambda i, c: "OK" if (i % 9, c) == (0, "ok") else c), d.run()),
        ("'OK' and 'ok' look alike", "labels", r"population\.relabel"),
    ),
    "two clients are one": (
        lambda d: (d.change("client", lambda i, c: "M0" if i % 6 == 0 else c), d.run()),
        ("'M0' and 'm0' look alike", "clients", "write the name in one way"),
    ),
    "a serial number is learnt from": (
        lambda d: (d.put("serial", lambda i, row: str(500 + i)), d.run()),
        ("numbers the rows", "column 'serial'", r'population\.ignore = \["serial"\]'),
    ),
    "the target is learnt from": (
        lambda d: (d.put("alarm", lambda i, row: str(int(row[-1] == "bad"))), d.run()),
        ("says the target", "column 'alarm'", r'population\.ignore = \["alarm"\]'),
    ),
    "columns are not scaled": (
        lambda d: (d.change("wear", lambda i, c: str(1e5 * float(c))), d.run("training.lr=1e-9")),
        ("not scaled", "all 3 clients", r'population\.scale = "standard"'),
    ),
    "there is one class": (
        lambda d: (d.change("label", lambda i, c: "ok"), d.run()),
        ("single label", "all 3 clients", "check the target column"),
    ),
    "there is one client": (
        lambda d: (d.change("client", lambda i, c: "m0"), d.run()),
        ("one client", "nothing is federated", "name the column"),
    ),
    "a batch holds more than there is": (
        lambda d: d.run("training.batch_size=5000"),
        ("is 5000", r"training\.batch_size", "set a smaller one"),
    ),
    "the learning rate is far too high": (
        lambda d: d.run("training.lr=100", "rounds=2"),
        ("diverges", r"training\.lr \(now 100\)", "lower"),
    ),
    "the learning rate is far too low": (
        lambda d: d.run("training.lr=1e-9"),
        ("no better than always saying the majority label", "clients", r"try another training\.lr"),
    ),
}


@pytest.mark.parametrize("mistake", DOUBTED)
def test_a_table_or_a_setting_that_is_doubted(mistake, desk):
    make, said = DOUBTED[mistake]
    told(lambda: make(desk), *said)


SET: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "no rounds": ("rounds=0", ("rounds", "greater than or equal to 1", "got 0")),
    "an unknown method": ("method=fedavgg", ("no 'fedavgg'", "method", "did you mean 'fedavg'")),
    "an unknown model": ("model=mpl", ("no 'mpl'", "model", "did you mean 'mlp'")),
    "an unknown setting": ("patience=3", ("unknown setting", "patience", "there are|did you mean")),
    "a path with a typo": ("trainning.lr=0.1", ("unknown setting", "trainning", "did you mean 'training'")),
    "a setting of something else": (
        "training.learning_rate=1",
        ("unknown", r"training\.learning_rate", "lr,"),
    ),
    "a word for a number": ("training.lr=fast", ("valid number", r"training\.lr", "got 'fast'")),
    "no change": ("training.lr", ("is no change", r"'training\.lr'", r"write a\.b=c")),
    "an engine that is none": (
        "engine.name=locl",
        ("no engine 'locl'", r"engine\.name", "did you mean 'local'"),
    ),
    "a device that is not here": (
        "engine.device=cuda:9",
        ("no 'cuda:9'", r"engine\.device", "write auto or cpu"),
    ),
    "more newcomers than clients": (
        "sampling.newcomers=9",
        ("is 9", r"sampling\.newcomers", "leave some to train"),
    ),
}


@pytest.mark.parametrize("mistake", SET)
def test_a_setting_that_is_refused(mistake, desk):
    change, said = SET[mistake]
    refused(lambda: desk.given(change), *said)


class Frozen(nn.Linear):
    """A model of which nothing can be trained."""

    def __init__(self) -> None:
        super().__init__(3, 2)
        self.requires_grad_(False)


PYTHON: Mapping[str, tuple[Callable[[Desk], Any], tuple[str, ...]]] = {
    "too few outputs": (
        lambda d: d.given(data=arrays(classes=3), model=nn.Linear(3, 2)),
        ("2 scores, and there are 3 classes", "client 'a'", "give its last layer 3 outputs"),
    ),
    "another number of inputs": (
        lambda d: d.given(model=nn.Linear(5, 2)),
        ("cannot be used with its data", "client 'a'", "give one that takes such inputs"),
    ),
    "weights of another type": (
        lambda d: d.given(model=nn.Linear(3, 2).double()),
        ("cannot be used", r"its weights are torch\.float64", r"give model\.float\(\)"),
    ),
    "weights on no device": (
        lambda d: d.given(model=nn.Linear(3, 2, device="meta")),
        ("no values", "model's 'weight'", "build the model on the cpu"),
    ),
    "nothing to train": (lambda d: d.given(model=Frozen()), ("all are frozen", "model", "requires_grad_")),
    "a class for a model": (lambda d: d.given(model=nn.Linear), ("model", "give a module", r"Network\(\)")),
    "a name for a method": (lambda d: d.given(method="fedavg"), ("method", "'fedavg'", "changes=")),
    "two clients of one name": (
        lambda d: d.given(data={**arrays(names=("1",)), **arrays(names=(1,))}),
        ("two clients", "'1'", "names are words"),
    ),
    "inputs and labels the wrong way round": (
        lambda d: d.given(data={"a": {**arrays()["a"], "train": arrays()["a"]["train"][::-1]}}),
        ("labels must be whole numbers", "train data of client 'a'", "for regression set"),
    ),
    "a NaN": (
        lambda d: d.given(data={"a": {**arrays()["a"], "test": (np.full((6, 3), np.nan), np.zeros(6, int))}}),
        ("NaN", "test data of client 'a': row 0", "clean it or leave the row out"),
    ),
    "a loss for other targets": (
        lambda d: d.given("training.loss=mse", data=intarsia.from_dict(arrays())),
        ("'mse' does not fit", r"training\.loss", "set it to 'cross_entropy'"),
    ),
    "labels of a loss for numbers": (
        lambda d: d.given("training.loss=cross_entropy", data=intarsia.from_dict(arrays(), "regression")),
        ("'cross_entropy' does not fit", r"training\.loss", "set it to 'mse'"),
    ),
    "a setting of the data that is given": (
        lambda d: d.given("population.clients=3"),
        (r"population\.clients", "data is given in Python", "would change nothing"),
    ),
    "a setting of the model that is given": (
        lambda d: d.given("model.hidden=[3]", model=nn.Linear(3, 2)),
        (r"model\.hidden", "model is given in Python", "would change nothing"),
    ),
    "a method twice": (
        lambda d: d.given("method=fedavg", method=FedProx()),
        ("'fedprox' is given", "'fedavg'", "give that one"),
    ),
    "public data twice": (
        lambda d: d.given("public.name=digits", data=with_public()),
        ("public", "brings public data of its own", "leave out one"),
    ),
}


def with_public() -> intarsia.Population:
    population = intarsia.from_dict(arrays())
    return dataclasses.replace(population, public=population.clients["a"].data["test"])


@pytest.mark.parametrize("mistake", PYTHON)
def test_what_is_given_in_python_and_refused(mistake, desk):
    make, said = PYTHON[mistake]
    refused(lambda: make(desk), *said)


def same_data() -> dict[str, dict[str, Any]]:
    return {name: {"train": own["train"], "test": own["train"]} for name, own in arrays().items()}


GIVEN_AND_DOUBTED: Mapping[str, tuple[Callable[[Desk], Any], tuple[str, ...]]] = {
    "labels start at 1": (
        lambda d: d.given(data=arrays(first=1)),
        ("labels begin at 1", "no client", "subtract 1 from all labels"),
    ),
    "tested on what is trained on": (
        lambda d: d.given(data=same_data()),
        ("tested on what it trains on", "client 'a'", "give other samples"),
    ),
    "a softmax too many": (
        lambda d: d.given(model=nn.Sequential(nn.Linear(3, 2), nn.Softmax(1))),
        ("softmax", "model", "leave out"),
    ),
    "more clients asked for than there are": (
        lambda d: d.given("sampling.clients=50"),
        ("is 50", r"sampling\.clients", "only 2 clients can train"),
    ),
}


@pytest.mark.parametrize("mistake", GIVEN_AND_DOUBTED)
def test_what_is_given_in_python_and_doubted(mistake, desk):
    make, said = GIVEN_AND_DOUBTED[mistake]
    told(lambda: make(desk), *said)


def test_folders_that_are_none_or_used(done, desk):
    refused(
        lambda: intarsia.run("quickstrat"), "no recipe or file", "'quickstrat'", "did you mean 'quickstart'"
    )
    refused(
        lambda: intarsia.run(SETTINGS, data=arrays(), out=done.path), "already used", "run", "another folder"
    )
    refused(
        lambda: intarsia.resume(desk.folder), "holds no run", str(desk.folder), "give the folder of a run"
    )
    refused(
        lambda: intarsia.open_run(desk.folder / "gone"), "holds no run", "gone", "give the folder of a run"
    )
    refused(lambda: intarsia.load(done.path), "is a folder", "run", "open_run")
    refused(lambda: done.client("m7"), "no client 'm7'", "the run", "m0, m1, m2|did you mean")


def test_paths_lead_from_the_file_that_names_them(desk, monkeypatch):
    desk.table()
    (desk.folder / "elsewhere").mkdir()
    recipe = desk.folder / "fleet.toml"
    recipe.write_text('rounds = 1\n[population]\nname = "files"\npath = "fleet.csv"\n')
    monkeypatch.chdir(desk.folder / "elsewhere")
    assert intarsia.load(recipe).population["path"] == str(desk.folder / "fleet.csv")
    refused(
        lambda: intarsia.run(recipe, changes=["population.path=fleet.csv"]),
        "does not exist",
        re.escape(os.path.join("elsewhere", "fleet.csv")),
        "put right the path",
    )


def test_export_and_predict_with_what_is_not_there(done, desk):
    refused(
        lambda: done.client("m0").export(desk.folder / "model.h5"),
        "no known ending",
        "model.h5",
        "write .onnx",
    )
    (desk.folder / "new.csv").write_text("heat\n1\n")
    command = ["predict", str(done.path), "--client", "m0", str(desk.folder / "new.csv")]
    shown = CliRunner().invoke(app, [*command, "--out", str(desk.folder / "out.csv")])
    assert shown.exit_code != 0
    refused(lambda: raise_of(shown), r"new\.csv", "column 'wear' is missing", "put it into the file")
    assert not (desk.folder / "out.csv").exists()


def raise_of(shown: Any) -> None:
    assert isinstance(shown.exception, Exception)
    raise shown.exception


@pytest.mark.parametrize("folders", [["nowhere"], ["empty"]])
def test_a_comparison_of_nothing(folders, desk):
    (desk.folder / "empty").mkdir()
    shown = CliRunner().invoke(app, ["compare", *(str(desk.folder / name) for name in folders)])
    assert shown.exit_code != 0
    refused(lambda: raise_of(shown), "not there|holds no run", folders[0])


def test_python_beats_the_settings_of_a_run(done, desk):
    """Data that is given stands in place of the run's; a change of anything else keeps the check of its split."""
    settings = done.path / "settings.toml"
    other = intarsia.run(settings, data=arrays(), out=desk.folder / "other")
    assert set(other.population["clients"]) == {"a", "b"}
    table = Path(done.settings.population["path"])
    before = table.read_text()
    try:
        table.write_text(before.replace("m0,", "m1,", 1))
        refused(
            lambda: intarsia.run(settings, changes=["training.lr=0.2"]),
            "the split is",
            "not the same",
            "put it right",
        )
        assert intarsia.run(settings, changes=["population.test=0.3"], out=desk.folder / "changed").summary[
            "finished"
        ]
    finally:
        table.write_text(before)
    assert intarsia.run(settings, changes=["training.lr=0.2"], out=desk.folder / "lr").settings.split_hash


def test_going_on_with_another_method_or_model(done, desk):
    run = desk.given("sharing.by=", method=FedProx())
    told(
        lambda: intarsia.resume(
            run.path, data=arrays(), method=FedProx(objective=Proximal(mu=5.0)), rounds=2
        ),
        "other settings than the run",
        r"objective\.mu: 5\.0, now",
        "give them as the run has them",
    )
    refused(
        lambda: intarsia.resume(done.path, model=nn.Linear(2, 2)),
        "named in its settings",
        "model",
        "leave out model=",
    )
