"""Several seeds, and runs side by side."""

from __future__ import annotations

import csv
import io
import json
import sys
from pathlib import Path

import pytest
from scipy import stats
from typer.testing import CliRunner

import intarsia
from intarsia.cli.app import app
from intarsia.core import IntarsiaError, RunFolderError, SettingsError
from intarsia.experiment import comparison
from tests.conftest import SMALL

QUICK = ["rounds=1", "population.clients=4"]


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of FedAvg's and Local's runs with three seeds each."""
    folder = tmp_path_factory.mktemp("both")
    intarsia.run(SMALL, changes=QUICK, seeds=3, out=folder / "fedavg")
    local = {**SMALL, "method": "local", "sharing": {}}
    intarsia.run(local, changes=QUICK, seeds=[0, 1, 2], out=folder / "local")
    return folder


def call(*arguments: object) -> str:
    done = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert done.exit_code == 0, done.output
    return done.stdout


def test_seeds_are_runs_of_their_own_and_go_on(both):
    found = intarsia.run(SMALL, changes=QUICK, seeds=2, out=both / "fedavg")
    assert [run.path.name for run in found.runs] == ["seed-0", "seed-1"]
    assert [run.summary["seed"] for run in found.runs] == [0, 1]
    alone = intarsia.run(SMALL, changes=[*QUICK, "seed=1"], out=both / "lone" / "run")
    assert alone.metrics == found.runs[1].metrics
    means = [run.summary["accuracy"]["mean"] for run in found.runs]
    assert found.summary["mean"] == pytest.approx(sum(means) / 2)
    with pytest.raises(RunFolderError, match="rounds: 1 there, 2 now"):
        intarsia.run(SMALL, changes=[*QUICK, "rounds=2"], seeds=2, out=both / "fedavg")
    with pytest.raises(SettingsError, match="none of them twice"):
        intarsia.run(SMALL, seeds=[1, 1])
    with pytest.raises(RunFolderError, match="not by runs of several seeds"):
        intarsia.run(SMALL, seeds=2, out=both)


def test_seeds_that_were_stopped_go_on(tmp_path):
    class Stop(intarsia.Observer):
        def playing(self, what: str) -> None:
            if what == "seed 1":
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt, match="Stopped at seed 1"):
        intarsia.run(SMALL, changes=QUICK, seeds=2, out=tmp_path, observer=Stop())
    first = (tmp_path / "seed-0" / "summary.json").read_bytes()
    done = intarsia.run(SMALL, changes=QUICK, seeds=2, out=tmp_path)
    assert (tmp_path / "seed-0" / "summary.json").read_bytes() == first
    assert len(done.runs) == 2
    assert json.loads((tmp_path / "seeds.json").read_text())["summary"]["seeds"] == [0, 1]


def test_seeds_that_were_refused_hold_no_folder(tmp_path):
    with pytest.raises(SettingsError, match="no 'fedavgg'"):
        intarsia.run(SMALL, changes=[*QUICK, "method=fedavgg"], seeds=1, out=tmp_path)
    assert not (tmp_path / "seeds.json").exists()
    assert len(intarsia.run(SMALL, changes=QUICK, seeds=1, out=tmp_path).runs) == 1


def test_experiments_are_compared_in_pairs_of_seeds(both):
    frame = intarsia.compare(both / "fedavg", both / "local")
    assert list(frame["experiment"]) == ["FedAvg", "Local"]
    ours, theirs = (
        [intarsia.open_run(both / m / f"seed-{s}").summary["accuracy"]["mean"] for s in range(3)]
        for m in ("local", "fedavg")
    )
    assert frame["mean"][1] == pytest.approx(sum(ours) / 3)
    assert frame["difference"][1] == pytest.approx((sum(ours) - sum(theirs)) / 3)
    expected = stats.ttest_rel(ours, theirs)
    assert frame["p"][1] == pytest.approx(expected.pvalue)
    interval = expected.confidence_interval(0.95)
    assert (frame["low"][1], frame["high"][1]) == pytest.approx((interval.low, interval.high))
    assert frame["parameters"][0] > 0
    assert frame["bytes"][1] == 0


def test_single_runs_are_compared_in_pairs_of_clients(both):
    runs = [intarsia.open_run(both / method / "seed-0") for method in ("fedavg", "local")]
    first, second = comparison(runs)
    assert first["difference"] is None
    assert (second["paired"], second["pairs"], second["test"]) == ("clients", 4, "Wilcoxon")
    other = comparison([runs[0], intarsia.open_run(both / "local" / "seed-1")])[1]
    assert other["pairs"] == 0
    assert "no seed with the same data" in other["paired"]


def test_settings_that_differ_name_the_experiments(both):
    for rate in (0.01, 0.2):
        intarsia.run(SMALL, changes=[*QUICK, f"training.lr={rate}"], out=both / "rates" / str(rate))
    labels = [
        row["experiment"] for row in comparison([intarsia.open_run(p) for p in (both / "rates").iterdir()])
    ]
    assert sorted(labels) == ["FedAvg (training.lr=0.01)", "FedAvg (training.lr=0.2)"]


def test_the_command_gives_tables_for_people_and_programs(both, tmp_path):
    folders = [both / "fedavg", both / "local"]
    shown = call("compare", *folders, "--out", tmp_path / "page.html")
    assert "Experiments over their seeds" in shown
    assert "Paired: t test over seeds." in shown
    rows = list(csv.DictReader(io.StringIO(call("compare", *folders, "--csv"))))
    assert [row["seeds"] for row in rows] == ["0 1 2", "0 1 2"]
    table = json.loads(call("compare", *folders, "--json"))
    assert [row["experiment"] for row in table["experiments"]] == ["FedAvg", "Local"]
    assert float(rows[1]["p"]) == table["experiments"][1]["p"]
    assert len(table["runs"]) == 6
    latex = call("compare", *folders, "--latex")
    assert latex.count("\\\\\n") == 3
    assert "Local & 3 &" in latex


def test_seeds_on_the_command_line(tmp_path):
    (tmp_path / "s.toml").write_text('name = "s"\nrounds = 1\n[population]\nname = "digits"\nclients = 4\n'
                                     'generations = ["8x8"]\n[engine]\nname = "debug"\n')  # fmt: skip
    shown = call("run", tmp_path / "s.toml", "--seeds", 2, "--out", tmp_path / "out")
    assert "Judged with 2 seeds; means over clients, with the deviation over seeds:" in shown
    runs = [intarsia.open_run(tmp_path / "out" / f"seed-{seed}") for seed in (0, 1)]
    means = [run.summary["judged"]["metrics"]["accuracy"]["mean"] for run in runs]
    assert f"  accuracy: {50 * sum(means):.1f} ± " in shown
    assert "worst, mean over seeds: client-" in shown
    assert "seed 1: round 1/1" in shown
    assert "Experiments over their seeds" in shown
    assert (tmp_path / "out" / "seed-1" / "summary.json").exists()


def test_what_is_no_run_is_named(both, tmp_path, monkeypatch):
    with pytest.raises(RunFolderError, match=f"no run that has ended: {tmp_path}, {tmp_path / 'gone'}"):
        intarsia.compare(both / "fedavg", tmp_path, tmp_path / "gone")
    with pytest.raises(SettingsError, match="give runs or run folders, not 3"):
        intarsia.compare(3)  # type: ignore[arg-type]
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(IntarsiaError, match=r"pip install 'intarsia\[pandas\]'"):
        intarsia.compare(both / "fedavg")


def test_the_engineer_with_a_fleet_is_told_in_the_terminal(tmp_path):
    lines = ["machine,a,b,state"]
    for machine in range(12):
        for row in range(50):
            state = "bad" if row % 7 == 0 else "ok"
            lines.append(
                f"m{machine:02},{(row * 37 + machine) % 11 / 5 - 1},{(row * 53) % 13 / 6 - 1},{state}"
            )
    (tmp_path / "fleet.csv").write_text("\n".join(lines))
    (tmp_path / "fleet.toml").write_text(
        'name = "fleet"\nrounds = 3\n[population]\nname = "files"\npath = "fleet.csv"\nclient = "machine"\n'
        'target = "state"\n[model]\nname = "mlp"\n[engine]\nname = "debug"\n'
    )
    done = CliRunner().invoke(app, ["run", str(tmp_path / "fleet.toml"), "--out", str(tmp_path / "run")])
    assert done.exit_code == 0, done.output
    said = " ".join(done.output.split())
    assert "every model says 'ok' to everything" in said
    assert "no better than always saying the majority label" in said
    assert "balanced accuracy, pooled: 50.0 %, majority label 50.0 %" in said
    assert "of 10 samples" in said
    low, high = intarsia.open_run(tmp_path / "run").summary["judged"]["interval"]["accuracy"]
    assert f"({100 * low:.1f} % to {100 * high:.1f} %)" in said
