"""Tables of several clients, out of the order of time, or far from training: whose model, which rows, what is said."""

from __future__ import annotations

import csv
import json
import random
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import intarsia
from intarsia.cli.app import app
from intarsia.core import DataError, SettingsError
from intarsia.export import Inputs, Predictor
from tests.export.test_tables import run_alone

HEAD = "maschine;zeit;druck;art;label"


def lines(machine: str, count: int = 40) -> list[str]:
    """Return rows of a machine in the order of time; every third pressure is missing."""
    draw, offset = random.Random(machine), int(machine[1:]) * 10
    found = []
    for i in range(count):
        value = offset + draw.gauss(0, 2)
        cell = "" if i % 3 == 2 else f"{value:.3f}".replace(".", ",")
        label = "hoch" if value > offset else "tief"
        found.append(f"{machine};2024-05-{1 + i // 24:02} {i % 24:02}:00;{cell};{'ab'[i % 2]};{label}")
    return found


def table(path: Path, rows: list[str]) -> Path:
    path.write_text("\n".join([HEAD, *rows]) + "\n")
    return path


@pytest.fixture(scope="module")
def plant(tmp_path_factory: pytest.TempPathFactory) -> intarsia.Run:
    """A run on three machines whose gaps are carried on in time."""
    folder = tmp_path_factory.mktemp("plant")
    path = table(folder / "plant.csv", [line for name in ("M12", "M13", "M14") for line in lines(name)])
    population = {"name": "files", "path": str(path), "client": "maschine", "time": "zeit", "order": "time"}
    fitted = {"missing": "carry", "scale": "standard", "scale_by": "client"}
    settings = {
        "rounds": 2,
        "method": "fedper",
        "population": {**population, **fitted},
        "model": {"name": "mlp", "hidden": [8]},
        "training": {"lr": 0.3, "batch_size": 8, "epochs": 3},
        "engine": {"name": "debug", "device": "cpu"},
    }
    return intarsia.run(settings, out=folder / "run")


@pytest.fixture
def mixed(tmp_path: Path) -> Path:
    """The machines' rows turn and turn about."""
    together = zip(*(lines(name, 12) for name in ("M12", "M13", "M14")), strict=True)
    return table(tmp_path / "mixed.csv", [line for three in together for line in three])


def alone(run: intarsia.Run, name: str, folder: Path) -> np.ndarray:
    """Return what is predicted for the machine's rows in a table of their own."""
    return run.client(name).predict(table(folder / f"{name}.csv", lines(name, 12))).values


def test_only_the_clients_own_rows_are_predicted(plant, mixed, tmp_path):
    exported = plant.client("M12").export(tmp_path / "model.pt2").path
    wanted = alone(plant, "M12", tmp_path)
    for found in (plant.client("M12").predict(mixed), Predictor.open(exported).predict(mixed)):
        assert np.abs(found.values - wanted).max() < 1e-6
        assert found.places["line"] == list(range(2, 38, 3))
        assert list(found.notices) == ["24 rows of other clients than 'M12' are left out"]
        assert found.unused == ["label"]


def test_each_row_with_its_own_clients_model(plant, mixed, tmp_path):
    found = plant.predict(mixed, identity="zeit")
    assert found.places["line"] == list(range(2, 38))
    assert found.places["maschine"] == ["M12", "M13", "M14"] * 12
    assert list(found.rows()[0])[:4] == ["line", "zeit", "maschine", "prediction"]
    for at, name in enumerate(("M12", "M13", "M14")):
        assert np.array_equal(found.values[at::3], alone(plant, name, tmp_path))


def test_who_is_not_there_is_named(plant, tmp_path):
    others = table(tmp_path / "others.csv", lines("M13", 6) + lines("M99", 6))
    with pytest.raises(DataError, match=r"no row is of client 'M12': column 'maschine' has M13, M99"):
        plant.client("M12").predict(others)
    with pytest.raises(DataError, match=r"line 8, column 'maschine': there is no client 'M99'; clients: M12"):
        plant.predict(others)
    with pytest.raises(DataError, match="the run has no client 'M1'; clients: M12, M13, M14"):
        plant.client("M1")
    (tmp_path / "nobody.csv").write_text("zeit;druck;art\n2024-05-01 00:00;1,5;a\n")
    with pytest.raises(
        SettingsError, match=r"say whose model: --client NAME \(the table has no column 'masch"
    ):
        plant.predict(tmp_path / "nobody.csv")


def test_gaps_are_carried_in_the_order_of_time_whatever_the_files(plant, tmp_path):
    rows = lines("M13", 12)
    order = random.Random(3).sample(range(12), 12)
    shuffled = table(tmp_path / "shuffled.csv", [rows[i] for i in order])
    exported = plant.client("M13").export(tmp_path / "model.pt2").path
    wanted = alone(plant, "M13", tmp_path)[order]
    for found in (plant.client("M13").predict(shuffled), Predictor.open(exported).predict(shuffled)):
        assert found.places["line"] == list(range(2, 14))
        assert np.abs(found.values - wanted).max() < 1e-6
    untimed = table(tmp_path / "untimed.csv", rows)
    untimed.write_text(untimed.read_text().replace("zeit", "when"))
    (notice,) = plant.client("M13").predict(untimed).notices
    assert notice == "there is no column 'zeit' with the time: rows are taken in the file's order"
    table(tmp_path / "gap.csv", [rows[0], rows[1].replace("2024-05-01 01:00", "")])
    with pytest.raises(DataError, match=r"line 3, column 'zeit': the time is missing"):
        plant.client("M13").predict(tmp_path / "gap.csv")


def test_the_program_of_the_docs_does_the_same(plant, mixed, tmp_path):
    """Semicolons, decimal commas, gaps in other spellings, several machines, rows out of order."""
    head, *rows = mixed.read_text().splitlines()
    gap = random.Random(5)
    rows = gap.sample(rows, len(rows))
    assert sum(";;" in row for row in rows) == 12
    mixed.write_text(
        "\n".join([head, *(row.replace(";;", gap.choice([";n/a;", ";-;", ";;"])) for row in rows)])
    )
    exported = plant.client("M13").export(tmp_path / "model.onnx").path
    wanted = plant.client("M13").predict(mixed)
    labels, found = run_alone(tmp_path, exported, mixed)
    assert labels == wanted.predicted
    assert np.abs(found - wanted.values).max() < 1e-6


def test_runs_of_earlier_versions_go_by_their_settings_and_their_exports_say_what_they_do(
    plant, mixed, tmp_path
):
    wanted = plant.client("M14").predict(mixed).values
    package = plant.client("M14").package()
    about = package.inputs.to_json()
    for key in ("client", "time", "time_form"):
        assert about["preparation"].pop(key)
    one = Predictor.of(package)
    old = Predictor("M14", Inputs.from_json(about), one.labels, one.targets, one.runner)
    found = old.predict(mixed)
    assert len(found) == 36
    assert found.notices[0].startswith(
        "column 'maschine' names others than 'M14', too: all rows are taken as"
    )
    record = plant.path / "population.json"
    kept = record.read_text()
    said = json.loads(kept)
    for preparation in said["preparations"]:
        for key in ("client", "time", "time_form"):
            del preparation[key]
    try:
        record.write_text(json.dumps(said))
        assert np.array_equal(intarsia.open_run(plant.path).client("M14").predict(mixed).values, wanted)
    finally:
        record.write_text(kept)


def test_what_training_hardly_saw_is_said(plant, tmp_path):
    rows = ["M12;2024-06-01 00:00;120000,5;a;", "M12;2024-06-01 01:00;121,5;x;", "M12;2024-06-01 02:00;;b;"]
    found = plant.client("M12").predict(table(tmp_path / "far.csv", rows))
    far, word = found.notices
    assert far.startswith("column 'druck': 1 of 3 rows are more than 10 deviations away from the mean")
    assert word == "column 'art': 1 of 3 rows hold a word that training did not know"
    assert not plant.client("M12").predict(table(tmp_path / "near.csv", lines("M12", 6))).notices
    text = table(tmp_path / "text.csv", ["M12;2024-06-01 00:00;viel;a;"])
    with pytest.raises(
        DataError, match=r"'viel' is no finite number, .*: write one, or empty the cell"
    ) as told:
        plant.client("M12").predict(text)
    assert "population." not in str(told.value)


def test_the_command_line_tells_it(plant, mixed, tmp_path):
    def call(*arguments: object) -> str:
        done = CliRunner().invoke(app, ["predict", *map(str, arguments)], env={"COLUMNS": "200"})
        if done.exception:
            raise done.exception
        return done.output

    said = call(plant.path, mixed, "--client", "M12", "--out", tmp_path / "one.csv")
    assert "24 rows of other clients than 'M12' are left out" in said
    assert "12 predictions" in said
    assert "36 predictions" in call(plant.path, mixed, "--out", tmp_path / "all.csv")
    with (tmp_path / "all.csv").open(newline="") as file:
        assert [row["maschine"] for row in csv.DictReader(file)] == ["M12", "M13", "M14"] * 12
