"""Raw readings in, label words and probabilities out: with a run, with its exports, with onnxruntime alone."""

from __future__ import annotations

import csv
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import intarsia
from intarsia.cli.app import app
from intarsia.core import DataError
from intarsia.data.preparation import Preparation
from intarsia.export import ExportError, Predictor
from intarsia.export.inputs import Columns

DOCS = Path(__file__).parents[2] / "docs" / "export.md"
ALONE = 'assert not {"intarsia", "torch"} & set(sys.modules), sorted(sys.modules)\n'


def run_alone(folder: Path, model: Path, table: Path) -> tuple[list[str], np.ndarray]:
    """Run the program of the docs, and return labels and probabilities."""
    script = folder / "plain.py"
    script.write_text(script_of_the_docs() + ALONE)
    command = [sys.executable, "-I", str(script), str(model), str(table)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)
    assert done.returncode == 0, done.stderr
    answers = [line.split() for line in done.stdout.splitlines()]
    return [label for label, *_ in answers], np.array([p for _, *p in answers], dtype=float)


def script_of_the_docs() -> str:
    """Return the program that docs/export.md shows for a place without Intarsia."""
    (found,) = re.findall(r"```python\n(import csv.*?)```", DOCS.read_text(), re.DOTALL)
    return found


def told(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def expected(run: intarsia.Run, client: str, path: Path) -> np.ndarray:
    """Return the probabilities that the model gives, computed here: cells read, filled, scaled by hand."""
    about = run.population
    columns = about["preparations"][about["clients"][client]["preparation"]]["columns"]
    samples = []
    for row in told(path):
        sample: list[float] = []
        for column in columns:
            cell = row[column["name"]]
            if column["kind"] == "words":
                sample += [float(cell == word) for word in column["words"]]
            else:
                value = float(cell) if cell else column["fill"]
                sample.append((value - column["offset"]) / column["scale"])
        samples.append(sample)
    x = torch.from_numpy(np.asarray(samples).astype(np.float32))
    return run.client(client).model()(x).softmax(1).detach().numpy()


@pytest.fixture(scope="module")
def exported(fleet, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("exports") / "m4"
    fleet.client("m4").export(folder)
    return folder


def test_a_run_an_onnx_a_pt2_and_a_folder_say_the_same_of_raw_rows(fleet, exported, rows_of):
    path = rows_of("m4")
    wanted = expected(fleet, "m4", path)
    assert wanted.std(0).min() > 0.05  # it tells rows apart
    for found in (
        fleet.client("m4").predict(path, identity="id"),
        Predictor.open(exported / "model.onnx").predict(path, "id"),
        Predictor.open(exported / "model.pt2").predict(path, "id"),
        Predictor.open(exported).predict(path, "id"),
    ):
        assert np.abs(found.values - wanted).max() < 1e-6
        assert found.unused == ["device", "label"]
        assert found.rows()[0]["line"] == 2
        assert found.rows()[3]["id"] == "4-3"
        assert found.predicted == [["faulty", "ok"][int(p.argmax())] for p in wanted]


def test_it_runs_where_there_is_neither_intarsia_nor_torch(fleet, exported, rows_of, tmp_path):
    path = rows_of("m4")
    labels, found = run_alone(tmp_path, exported / "model.onnx", path)
    assert np.abs(found - expected(fleet, "m4", path)).max() < 1e-6
    assert set(labels) == {"faulty", "ok"}


def test_the_accuracy_of_predictions_is_that_of_the_run(fleet):
    """The rows that the client was tested on, found again in the table, are predicted as they were scored."""
    preparation = fleet.client("m1").preparation
    test = fleet.client("m1").data["test"]
    score = next(r for r in reversed(fleet.client("m1").metrics) if r["split"] == "test")
    assert isinstance(preparation, Preparation)
    path = Path(fleet.settings.population["path"])
    answers = {}
    for row in told(path):
        if row["client"] == "m1":
            raw = [float(row["temp"] or "nan"), float(["idle", "run", "test"].index(row["mode"]))]
            found = fleet.client("m1").predict(np.array([raw])).predicted[0]
            answers[tuple(preparation.apply(np.array([raw]))[0].tolist())] = found == row["label"]
    assert sum(answers[tuple(x.tolist())] for x in test.x) == score["correct"]


@pytest.mark.parametrize("left_out", ["offset", "scale", "fill"])
def test_an_export_without_its_preparation_is_not_written(left_out, fleet, tmp_path, monkeypatch):
    made = Columns.__init__

    def forgetful(self, preparation):
        made(self, preparation)
        getattr(self, left_out).fill_(1.0)

    monkeypatch.setattr(Columns, "__init__", forgetful)
    with pytest.raises(ExportError, match="is not written: it differs"):
        fleet.client("m4").export(tmp_path / "model.pt2")
    assert not list(tmp_path.glob("model*"))


def test_missing_values_go_by_the_models_rule(fleet, rows_of, tmp_path):
    path = tmp_path / "gaps.csv"
    path.write_text("temp,mode\n,run\nnan,run\n310.5,never seen\n")
    about = fleet.client("m0").preparation.columns
    mean = next(column.fill for column in about if column.name == "temp")
    found = fleet.client("m0").predict(path).values
    filled = fleet.client("m0").predict(np.array([[mean, 1.0], [mean, 1.0], [310.5, -1.0]])).values
    assert np.array_equal(found, filled)


def test_tables_that_do_not_fit_are_refused_by_name(fleet, tmp_path):
    client = fleet.client("m4")
    path = tmp_path / "new.csv"
    path.write_text("temp,mode\n300,run\n")
    with pytest.raises(DataError, match="column 'vibration' is missing, the model was trained with it"):
        client.predict(path)
    path.write_text("temp,vibration,mode\nhot,0.1,run\n")
    with pytest.raises(DataError, match=r"new\.csv, line 2, column 'temp': 'hot' is no finite number"):
        client.predict(path)
    with pytest.raises(DataError, match=r"there is no column 'name'; there are: temp"):
        client.predict(path, identity="name")
    with pytest.raises(DataError, match=r"shape \[rows, 3\], not float64 \[2, 2\]"):
        client.predict(np.zeros((2, 2)))
    with pytest.raises(DataError, match="does not exist"):
        client.predict(tmp_path / "nothing.csv")
    with pytest.raises(DataError, match=r"no table .*, no \.npz archive and no images in it"):
        client.predict(tmp_path)


def test_without_a_rule_missing_values_are_refused_with_their_line(tmp_path):
    rows = "\n".join(f"c{i % 2},{i % 7},{i % 3 % 2}" for i in range(40))
    (tmp_path / "t.csv").write_text(f"client,a,label\n{rows}\n")
    settings = {
        "rounds": 1,
        "population": {"name": "files", "path": str(tmp_path / "t.csv")},
        "engine": {"name": "debug"},
    }
    run = intarsia.run(settings, changes=["population.scale=standard"], out=tmp_path / "run")
    (tmp_path / "new.csv").write_text("a,b\n1,0\n,0\n")
    with pytest.raises(
        DataError, match=r"line 3, column 'a': the value is missing, .* fill the cell, or leave"
    ):
        run.client("c0").predict(tmp_path / "new.csv")


def test_regression_gives_numbers_in_the_units_of_the_table(tmp_path):
    draw = np.random.default_rng(0)
    x = draw.normal(50, 10, (80, 2))
    lines = [f"c{i % 2},{a:.4f},{b:.4f},{3000 * a - 200 * b:.4f}" for i, (a, b) in enumerate(x)]
    (tmp_path / "t.csv").write_text("client,a,b,power\n" + "\n".join(lines) + "\n")
    population = {
        "name": "files",
        "path": str(tmp_path / "t.csv"),
        "target": "power",
        "problem": "regression",
    }
    scaled = {"scale": "standard", "target_scale": "standard"}
    run = intarsia.run(
        {
            "rounds": 5,
            "population": {**population, **scaled},
            "model": "logistic",
            "engine": {"name": "debug"},
        },
        changes=["training.lr=0.2", "training.batch_size=8", "training.epochs=5"],
        out=tmp_path / "run",
    )
    exported = run.client("c0").export(tmp_path / "model.onnx")
    found = Predictor.open(exported.path).predict(tmp_path / "t.csv")
    assert list(found.rows()[0]) == ["line", "prediction of power"]
    powers = np.array([float(row["power"]) for row in told(tmp_path / "t.csv") if row["client"] == "c0"])
    assert np.abs(found.values[:, 0] - powers).mean() < 0.1 * powers.std()
    assert exported.difference < 1e-5


def test_windows_are_predicted_at_their_last_line(tmp_path):
    lines = [f"c{i // 60},{i},{i % 5},{int(i % 10 > 4)}" for i in range(120)]
    (tmp_path / "t.csv").write_text("client,when,a,label\n" + "\n".join(lines) + "\n")
    population = {
        "name": "files",
        "path": str(tmp_path / "t.csv"),
        "time": "when",
        "order": "time",
        "window": 5,
    }
    settings = {"rounds": 1, "population": population, "model": "mlp", "engine": {"name": "debug"}}
    run = intarsia.run(settings, changes=["population.scale=standard"], out=tmp_path / "run")
    (tmp_path / "new.csv").write_text("when,a\n" + "\n".join(f"{i},{i % 5}" for i in range(12)) + "\n")
    exported = run.client("c0").export(tmp_path / "model.onnx")
    assert exported.check.samples > 0
    for found in (
        run.client("c0").predict(tmp_path / "new.csv"),
        Predictor.open(exported.path).predict(tmp_path / "new.csv"),
    ):
        assert found.places["line"] == [6, 11]
    (tmp_path / "short.csv").write_text("when,a\n1,1\n2,2\n")
    with pytest.raises(DataError, match="2 rows are too few: a sample is 5"):
        run.client("c0").predict(tmp_path / "short.csv")


def call(*arguments: object) -> tuple[int, str]:
    done = CliRunner().invoke(app, [str(a) for a in arguments], env={"COLUMNS": "200"})
    if done.exception and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done.exit_code, done.output


def test_the_command_line_exports_and_predicts(fleet, rows_of, tmp_path):
    code, said = call("export", fleet.path, "--client", "m4", "--to", tmp_path / "m4.onnx")
    assert code == 0
    assert "m4.onnx: largest difference from the original" in said
    assert "test samples of the client and 64 made inputs" in said
    path = rows_of("m4")
    outs = [tmp_path / "a.csv", tmp_path / "b.csv"]
    code, said = call("predict", tmp_path / "m4.onnx", path, "--out", outs[0], "--id", "id")
    assert (code, "40 predictions" in said, "does not use: device, label" in said) == (0, True, True)
    call("predict", fleet.path, path, "--client", "m4", "--out", outs[1], "--id", "id")
    one, other = (told(out) for out in outs)
    assert list(one[0]) == ["line", "id", "prediction", "probability of faulty", "probability of ok"]
    assert [(r["line"], r["id"], r["prediction"]) for r in one] == [
        (r["line"], r["id"], r["prediction"]) for r in other
    ]
    nobodys = tmp_path / "nobodys.csv"
    nobodys.write_text("temp,mode\n300,run\n")
    for wrong, cure in {
        ("export", fleet.path, "--to", tmp_path / "x.onnx"): r"say whose model: --client NAME, or --all",
        ("predict", fleet.path, nobodys): r"say whose model: --client NAME",
        ("predict", tmp_path / "m4.onnx", path, "--client", "m5"): "is the model of client 'm4', not of 'm5'",
        ("predict", tmp_path / "nowhere", path): "name a run folder, or what intarsia export wrote",
        ("predict", tmp_path / "m4.onnx", path, "--out", outs[0]): "is there already",
    }.items():
        with pytest.raises(intarsia.IntarsiaError, match=cure):
            call(*wrong)


def test_all_clients_at_once(fleet, rows_of, tmp_path):
    written = fleet.export(tmp_path / "models" / "{client}.pt2")
    assert [one.path.name for one in written] == [f"m{i}.pt2" for i in range(6)]
    assert Predictor.open(tmp_path / "models" / "m5.pt2").client == "m5"


def test_a_folder_of_exports_asks_for_the_client(fleet, exported, rows_of, tmp_path):
    (tmp_path / "several").mkdir()
    for name in ("m3", "m4"):
        (tmp_path / "several" / name).symlink_to(exported)
    other = tmp_path / "several" / "m3"
    other.unlink()
    fleet.client("m3").export(other)
    assert Predictor.open(tmp_path / "several", "m3").client == "m3"
    with pytest.raises(DataError, match=r"say whose \(--client NAME\): m3, m4"):
        Predictor.open(tmp_path / "several")
    with pytest.raises(DataError, match="holds no model of client 'm1'"):
        Predictor.open(tmp_path / "several", "m1")
    with pytest.raises(DataError, match="cannot be run by itself"):
        Predictor.open(exported / "model.safetensors")
