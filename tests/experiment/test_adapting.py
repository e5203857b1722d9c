"""A client that joins later: its model comes from the run's blocks alone, and goes out like any other."""

from __future__ import annotations

import csv
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from examples import fleet as trucks
from PIL import Image
from typer.testing import CliRunner

import intarsia
from intarsia.cli.app import app
from intarsia.core import DataError, IntarsiaError, SettingsError
from intarsia.data.preparation import Preparation
from intarsia.export import Predictor
from intarsia.methods import METHODS
from tests.conftest import NEEDS, SMALL

COHORTS = {
    **SMALL,
    "method": "modfl",
    "sharing": {},
    "rounds": 8,
    "training": {"lr": 0.2, "batch_size": 16, "epochs": 2},
}
FLEET = {
    "name": "fleet",
    "rounds": 3,
    "method": "modfl",
    "population": {
        "name": "files",
        "client": "truck",
        "target": "state",
        "ignore": ["depot", "time"],
        "missing": "mean",
        "scale": "standard",
        "scale_by": "device",
        "relabel": {"OK": "ok"},
    },
    "model": {"name": "mlp", "hidden": [8]},
    "training": {"lr": 0.3, "batch_size": 8, "epochs": 3},
    "engine": {"name": "debug", "device": "cpu"},
}


def without(run: intarsia.Run, name: str) -> tuple[object, object]:
    """Return the whole data of a client, raw."""
    data = run.experiment.setup.population.clients[name].data
    return tuple(np.concatenate([getattr(data[s], part).numpy() for s in data]) for part in "xy")


def _gone(*_: object) -> None:
    raise DataError("the data is gone")


@pytest.fixture
def moved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[intarsia.Run], intarsia.Run]:
    """Open a copy of a run's folder elsewhere, where nobody finds the data that its settings name."""

    def move(run: intarsia.Run) -> intarsia.Run:
        for user in ("build", "opened"):
            monkeypatch.setattr(f"intarsia.experiment.{user}.population_of", _gone)
        return intarsia.open_run(shutil.copytree(run.path, tmp_path / "elsewhere" / "run"))

    return move


@pytest.fixture(scope="module")
def cohorts(tmp_path_factory: pytest.TempPathFactory) -> intarsia.Run:
    """A run of ModFL on digits; its last clients, of whom there is one of each cohort, never trained."""
    folder = tmp_path_factory.mktemp("cohorts")
    return intarsia.run(COHORTS, changes=["sampling.newcomers=2"], out=folder / "run")


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> intarsia.Run:
    """A run on the table of trucks of two generations, which is then taken away."""
    folder = tmp_path_factory.mktemp("fleet")
    trucks.write(folder / "fleet.csv")
    intarsia.run(FLEET, changes=[f"population.path={folder / 'fleet.csv'}"], out=folder / "there" / "run")
    (folder / "fleet.csv").unlink()
    shutil.move(folder / "there", folder / "here")
    return intarsia.open_run(folder / "here" / "run")


def truck(path: Path, number: int, *, columns: list[str] | None = None, rows: int = 80) -> Path:
    """Write the rows of one truck that the run has not seen."""
    kind = 1 if number == 13 else 7
    with path.open("w", newline="") as file:
        table = csv.writer(file)
        kept = [i for i, name in enumerate(trucks.HEADER) if columns is None or name in columns]
        table.writerow([trucks.HEADER[i] for i in kept])
        for i, row in enumerate(trucks.readings(kind, 2 * rows)[rows:]):
            cells = [str(i), f"truck-{number}", *row[1:]]
            table.writerow([cells[j] for j in kept])
    return path


def test_a_newcomer_finds_its_cohort(cohorts, moved):
    there = moved(cohorts)
    infos = {info.name: info for info in cohorts.setup.population.infos}
    new = list(infos)[-2:]
    assert len({infos[name].cohort for name in new}) == 2
    for name in new:
        found = there.adapt(without(cohorts, name), name=f"new-{name}", device=infos[name].device)
        assert found.blocks["configuration"] == f"configuration@{infos[name].device}"
        assert found.blocks["operation"] == f"operation@{infos[name].cohort}"
        assert {one["blocks"]["operation"] for one in found.tried} == {
            f"operation@{info.cohort}" for info in infos.values()
        }


def test_figures_are_those_of_the_model_that_is_kept(cohorts):
    x, y = without(cohorts, cohorts.clients[-1])
    found = cohorts.adapt((x, y), name="new", epochs=3)
    assert {row["stage"] for row in found.judged} == {"new", "tuned", "alone"}
    best = max(("new", "tuned", "alone"), key=lambda s: found.row(s, "validation")["metrics"]["accuracy"])
    kept = found.row(split="validation")
    assert kept["metrics"]["accuracy"] == found.row(best, "validation")["metrics"]["accuracy"]
    counts = {split: found.row(split=split)["n"] for split in ("validation", "test")}
    assert sum(counts.values()) + found.package.story["samples"]["train"] == len(y)
    test = found.package.test
    right = (found.model(test.x).argmax(1) == test.y).float().mean()
    assert float(right) == pytest.approx(found.row()["metrics"]["accuracy"])
    assert found.row()["usual"]["accuracy"] < found.row()["metrics"]["accuracy"]
    assert found.row()["interval"]["accuracy"][0] <= float(right)


def test_the_same_newcomer_gets_the_same_model(cohorts):
    data = without(cohorts, cohorts.clients[-1])
    one, two = (cohorts.adapt(data, name="new").model.state_dict() for _ in range(2))
    assert all(one[name].equal(two[name]) for name in one)


@pytest.mark.parametrize(("number", "inputs"), [(13, 1), (14, 3)])
def test_a_new_truck_gets_the_configuration_of_its_generation(fleet, tmp_path, number, inputs):
    found = fleet.adapt(truck(tmp_path / f"truck-{number}.csv", number))
    kin = fleet.client("truck-01" if number == 13 else "truck-07")
    assert found.blocks["configuration"] == f"configuration@{kin.info.device}"
    assert found.package.inputs.preparation == fleet.client(kin.name).preparation
    assert len([c for c in found.package.inputs.preparation.columns if c.kind == "number"]) == inputs
    assert found.row()["metrics"]["accuracy"] > found.row()["usual"]["accuracy"]


def test_scales_of_its_own_where_the_clients_have_theirs(tmp_path):
    trucks.write(tmp_path / "fleet.csv", 4)
    changes = [f"population.path={tmp_path / 'fleet.csv'}", "population.scale_by=client", "rounds=1"]
    run = intarsia.run(FLEET, changes=changes, out=tmp_path / "run")
    path = truck(tmp_path / "truck-13.csv", 13)
    prepared = run.adapt(path, epochs=1).package.inputs.preparation
    assert isinstance(prepared, Preparation)
    own = {c.name: c for c in prepared.columns}["heat"]
    with path.open() as file:
        heat = [float(row["heat"]) for row in csv.DictReader(file) if row["heat"] != "n/a"]
    assert own.offset == pytest.approx(np.mean(heat), rel=0.05)
    others = {run.client(name).preparation.columns[0].offset for name in run.clients}
    assert own.offset not in others


@pytest.mark.parametrize(
    ("columns", "device", "said"),
    [
        (["truck", "gear", "state"], None, "column 'heat' is missing"),
        (["truck", "heat", "gear", "state"], "columns-1", "no device 'columns-1'"),
        (["truck", "heat", "gear"], None, "no column 'state' to predict"),
    ],
)
def test_columns_that_do_not_fit_are_named(fleet, tmp_path, columns, device, said):
    path = truck(tmp_path / "truck-13.csv", 13, columns=columns)
    with pytest.raises(DataError, match=said):
        fleet.adapt(path, device=device)


def test_an_unknown_label_is_refused_by_name(fleet, tmp_path):
    path = truck(tmp_path / "truck-13.csv", 13)
    path.write_text(path.read_text().replace(",worn", ",burnt"))
    with pytest.raises(DataError, match="label 'burnt' is not among the run's"):
        fleet.adapt(path)


def test_other_mistakes_are_said(fleet, cohorts, tmp_path):
    with pytest.raises(DataError, match="does not exist"):
        fleet.adapt(tmp_path / "none.csv")
    path = truck(tmp_path / "truck-13.csv", 13)
    with pytest.raises(DataError, match="has a client 'truck-01' already"):
        fleet.adapt(path, name="truck-01")
    with pytest.raises(DataError, match="take no table"):
        cohorts.adapt(path)
    with pytest.raises(DataError, match=r"shape \[rows"):
        cohorts.adapt((np.zeros((9, 3), np.float32), [0] * 9))
    trucks.write(tmp_path / "all.csv", 2)
    with pytest.raises(DataError, match="several clients"):
        fleet.adapt(tmp_path / "all.csv")
    for epochs in (-1, 0.5, "many"):
        with pytest.raises(SettingsError, match="epochs"):
            fleet.adapt(path, epochs=epochs)
    path.write_text("\n".join(path.read_text().splitlines()[:3]))
    with pytest.raises(DataError, match="has no validation rows: give more rows"):
        fleet.adapt(path)


def arrays(rows: int, seed: int) -> dict[str, object]:
    """Return arrays whose label follows from the first column, which is far from 0."""
    draw = np.random.default_rng(seed)
    x = draw.normal(100, 20, (rows, 3))
    return {"x": x, "y": np.where(x[:, 0] > 100, "high", "low")}


@pytest.mark.parametrize("scale", ["standard", "none"])
def test_an_archive_is_prepared_as_those_of_the_run(tmp_path, scale):
    (tmp_path / "machines").mkdir()
    for number in range(3):
        np.savez(tmp_path / "machines" / f"m{number}.npz", **arrays(60, number))
    np.savez(tmp_path / "m9.npz", **arrays(50, 9))
    population = {"name": "files", "path": str(tmp_path / "machines"), "scale": scale}
    run = intarsia.run({**FLEET, "method": "fedavg", "population": population}, out=tmp_path / "run")
    shutil.rmtree(tmp_path / "machines")
    found = intarsia.open_run(run.path).adapt(tmp_path / "m9.npz")
    assert found.package.inputs.preparation == run.client("m0").preparation
    assert (found.package.client, found.package.labels) == ("m9", ["high", "low"])
    assert {split: found.row(split=split)["n"] for split in ("validation", "test")} == {
        "validation": 8,
        "test": 10,
    }


def test_a_folder_of_images(tmp_path):
    draw = np.random.default_rng(3)
    for client in ("one", "two", "new"):
        for label, grey in (("dark", 60), ("light", 190)):
            folder = tmp_path / ("new" if client == "new" else f"all/{client}") / label
            folder.mkdir(parents=True)
            for number in range(15):
                pixels = draw.normal(grey, 30, (8, 8)).clip(0, 255).astype(np.uint8)
                Image.fromarray(pixels).save(folder / f"{number}.png")
    population = {"name": "files", "path": str(tmp_path / "all")}
    run = intarsia.run({**FLEET, "method": "fedavg", "population": population}, out=tmp_path / "run")
    found = run.adapt(tmp_path / "new")
    assert found.row()["metrics"]["accuracy"] == 1
    assert found.row()["n"] == 6
    (tmp_path / "new" / "dark").rename(tmp_path / "new" / "dim")
    with pytest.raises(DataError, match=r"label 'dim' is not among the run's \(dark, light\)"):
        run.adapt(tmp_path / "new")


def test_parts_of_the_time_keep_their_own_scales(tmp_path):
    def write(path: Path, clients: list[str]) -> None:
        draw = np.random.default_rng(len(clients))
        with path.open("w", newline="") as file:
            table = csv.writer(file)
            table.writerow(["client", "when", "heat", "y"])
            for client in clients:
                for i in range(100):
                    when = f"2026-01-{1 + i // 24:02} {i % 24:02}:00:00"
                    heat = draw.normal(50, 10)
                    table.writerow([client, when, f"{heat:.3f}", f"{3 * heat + i % 24:.3f}"])

    write(tmp_path / "all.csv", ["a", "b", "c"])
    write(tmp_path / "new.csv", ["d"])
    population = {
        **{"name": "files", "path": str(tmp_path / "all.csv"), "target": "y", "problem": "regression"},
        **{"time": "when", "time_parts": ["hour", "weekday"], "order": "time", "window": 4, "stride": 2},
        **{"missing": "carry", "scale": "standard", "target_scale": "standard"},
    }
    settings = {**FLEET, "method": "fedavg", "population": population, "rounds": 2}
    run = intarsia.run(settings, changes=["training.lr=0.05"], out=tmp_path / "run")
    found = run.adapt(tmp_path / "new.csv")
    assert found.package.inputs.preparation == run.client("a").preparation
    assert found.package.client == "d"
    assert found.row()["metrics"]["rmse"] < found.row()["usual"]["rmse"]


@pytest.mark.parametrize("method", METHODS)
def test_every_method_gives_a_model_or_says_why_not(method, tmp_path, moved):
    changes = [f"method={method}", "rounds=2", *NEEDS.get(method, ())]
    run = intarsia.run(SMALL, changes=changes, out=tmp_path / "run")
    data = without(run, run.clients[-1])
    own = method in ("local", "fedmd", "fccl", "pfedclub", "pfedclub+", "pfedhr")
    there = moved(run)
    if own:
        with pytest.raises(IntarsiaError, match=r"share no block|somebody's own"):
            there.adapt(data, name="new", epochs=1)
        return
    found = there.adapt(data, name="new", epochs=1)
    written = found.export(tmp_path / "new.pt2")
    assert len(found.tried) >= (2 if method == "fedmn" else 1)
    assert written.check.samples == found.row()["n"]
    assert written.difference < 1e-5


def test_the_command_writes_a_model_that_predicts(fleet, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = truck(tmp_path / "truck-13.csv", 13)
    done = CliRunner().invoke(app, ["adapt", str(fleet.path), "--data", str(path)])
    assert done.exit_code == 0, done.output
    for said in ("configuration@", "as it comes", "tuned at home", "trained alone", "the usual answer"):
        assert said in done.output
    record = json.loads((tmp_path / "truck-13-model" / "model.json").read_text())
    assert record["adapted"]["kept"] in ("new", "tuned", "alone")
    assert "joined later" in (tmp_path / "truck-13-model" / "README.md").read_text()
    assert len(Predictor.open(tmp_path / "truck-13-model").predict(path)) == 80
