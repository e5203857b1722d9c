"""The search: chosen on validation data and nothing else, recorded, and resumable at any moment."""

from __future__ import annotations

import io
import json
import shutil
import signal
import subprocess
import sys
import time
from statistics import fmean, stdev

import numpy as np
import pytest
import torch
from rich.console import Console

import intarsia
from intarsia.core import RunFolderError, SettingsError, TuningError
from intarsia.tuning import Range, TuningObserver, name_of, parse_grid, parse_ranges, split_values
from intarsia.tuning.progress import TuningProgress
from intarsia.tuning.space import Space
from tests.cli.test_cli import call
from tests.conftest import SMALL

BASE = {**SMALL, "rounds": 2, "population": {"name": "digits", "clients": 4, "cohorts": 2, "validation": 0.3}}
RATES = {"training.lr": [0.01, 0.3]}
QUICK = [
    *("--set", "rounds=2", "--set", "population.clients=4", "--set", "population.cohorts=2"),
    *("--set", "population.validation=0.3", "--set", "model.hidden=[8]", "--engine", "debug"),
]


class Counting(TuningObserver):
    """Notes which runs start; stops the search in mid-run where asked."""

    def __init__(self, stop_at: int = 0, after_round: int = 1) -> None:
        self.runs: list[tuple[int, int]] = []
        self.rounds = 0
        self.stop_at, self.after_round = stop_at, after_round

    def run_started(self, trial, seed, trials):
        self.runs.append((trial.number, seed))

    def round_done(self, report):
        self.rounds += 1
        if len(self.runs) == self.stop_at and report.round == self.after_round:
            raise KeyboardInterrupt


def validation(run, round, measure="accuracy"):
    rows = [r for r in run.metrics if (r["round"], r["split"], r["stage"]) == (round, "validation", "own")]
    return fmean(r[measure] for r in rows)


def runs_of(found, trial):
    return [intarsia.open_run(found.path / run.folder) for run in trial.runs]


def own_data(problem="classification", test_labels=None):
    """Three clients whose labels follow from the inputs, but the test labels only where none are given."""
    source = torch.Generator().manual_seed(0)
    data = {}
    for i in range(3):
        entry = {}
        for split, n in (("train", 40), ("validation", 20), ("test", 20)):
            x = torch.randn(n, 3, generator=source)
            entry[split] = (x, (x[:, 0] > 0).long() if problem == "classification" else x.sum(1))
        if test_labels is not None:
            entry["test"] = (entry["test"][0], test_labels(entry["test"][1]))
        data[f"c{i}"] = entry
    return data


OWN = {"rounds": 3, "model": "logistic", "engine": {"name": "debug", "device": "cpu"}}


def test_the_best_is_the_best_on_validation(tmp_path):
    grid = {"training.lr": [0.001, 0.3, 0.02], "model.hidden": [[8], [12, 6]]}
    found = intarsia.tune(BASE, grid=grid, seeds=2, out=tmp_path / "t")
    assert [t.point for t in found.trials] == [
        {"training.lr": lr, "model.hidden": hidden}
        for lr in grid["training.lr"]
        for hidden in grid["model.hidden"]
    ]
    means = []
    for trial in found.trials:
        scores = [validation(run, 2) for run in runs_of(found, trial)]
        assert [run.settings.seed for run in runs_of(found, trial)] == [0, 1]
        assert [run.score for run in trial.runs] == scores
        assert (trial.mean, trial.std) == (fmean(scores), stdev(scores))
        means.append(trial.mean)
    assert found.best.number == 1 + int(np.argmax(means))
    assert [row["mean"] for row in found.table] == sorted(means, reverse=True)
    assert {key: str(found.settings.model_dump()[key.split(".")[0]][key.split(".")[1]]) for key in grid} == {
        key: str(value) for key, value in found.best.point.items()
    }


def test_the_best_settings_run_again_to_the_same_result(tmp_path):
    found = intarsia.tune(BASE, grid=RATES, out=tmp_path / "t")
    again = intarsia.run(found.path / "best.toml", out=tmp_path / "again")
    assert again.metrics == runs_of(found, found.best)[0].metrics
    assert again.settings == found.settings
    assert again.settings.checkpoints.keep == 2
    assert runs_of(found, found.best)[0].settings.checkpoints.keep == 1


def test_everything_is_recorded(tmp_path):
    found = intarsia.tune(
        BASE,
        grid={"method": ["fedavg", "fedprox"]},
        ranges={"training.lr": (0.1, 0.5, "log")},
        random=2,
        out=tmp_path / "t",
    )
    record = json.loads((found.path / "tune.json").read_text())
    assert record["grid"] == {"method": ["fedavg", "fedprox"]}
    assert record["ranges"] == {"training.lr": {"low": 0.1, "high": 0.5, "scale": "log"}}
    assert (record["random"], record["seeds"]) == (2, [0])
    assert record["choice"] == {"split": "validation", "measure": "accuracy", "round": "last"}
    assert record["settings"]["population"]["validation"] == 0.3
    rows = json.loads((found.path / "trials.json").read_text())
    assert rows == [trial.row for trial in found.trials]
    for row in rows:
        (run,) = row["runs"]
        assert 0.1 <= row["point"]["training.lr"] <= 0.5
        settings = intarsia.open_run(found.path / run["folder"]).settings
        assert settings.training.lr == row["point"]["training.lr"]
        assert settings.method["name"] == row["point"]["method"]
        assert row["point"]["method"] in run["folder"]


def test_test_data_has_no_say(tmp_path):
    """Where the test labels are all wrong, the point that is best on test data is the worst one."""
    kept = intarsia.tune(OWN, grid={"training.lr": [1e-9, 0.5]}, data=own_data(), out=tmp_path / "kept")
    turned = own_data(test_labels=lambda y: 1 - y)
    found = intarsia.tune(OWN, grid={"training.lr": [1e-9, 0.5]}, data=turned, out=tmp_path / "turned")
    poor, good = (runs_of(found, trial)[0].summary["accuracy"]["mean"] for trial in found.trials)
    assert poor > good
    assert found.best.number == 2
    assert [t.mean for t in found.trials] == [t.mean for t in kept.trials]


def test_regression_takes_the_smallest_validation_loss(tmp_path):
    settings = {**OWN, "training": {"loss": "mse"}}
    found = intarsia.tune(
        settings, grid={"training.lr": [0.1, 1e-6]}, data=own_data("regression"), out=tmp_path / "t"
    )
    assert found.measure == "loss"
    means = [validation(runs_of(found, t)[0], 3, "loss") for t in found.trials]
    assert [t.mean for t in found.trials] == means
    assert means[0] < means[1]
    assert found.best.number == 1


def test_by_the_best_round(tmp_path):
    """With a learning rate that decays upwards, training falls apart after its best round."""
    settings = {
        **BASE,
        "rounds": 4,
        "training": {"lr": 0.2, "schedule": {"name": "exponential", "gamma": 6.0}},
    }
    found = intarsia.tune(settings, grid={"training.batch_size": [8, 16]}, by="best", out=tmp_path / "t")
    for trial in found.trials:
        scores = {r: validation(runs_of(found, trial)[0], r) for r in (1, 2, 3, 4)}
        assert trial.mean == max(scores.values()) > scores[4]
        assert scores[trial.runs[0].round] == trial.mean


def test_equal_scores_go_to_the_first(tmp_path):
    found = intarsia.tune(BASE, grid={"engine.workers": [3, 1, 2]}, out=tmp_path / "t")
    assert len({t.mean for t in found.trials}) == 1
    assert found.best.number == 1


def test_a_methods_own_settings(tmp_path):
    found = intarsia.tune(
        BASE,
        changes=["method=fedprox", "training.lr=0.3"],
        grid={"objective.mu": [0.0, 3.0]},
        out=tmp_path / "t",
    )
    assert [runs_of(found, t)[0].settings.objective["mu"] for t in found.trials] == [0.0, 3.0]
    plain = intarsia.run(BASE, changes=["training.lr=0.3"], out=tmp_path / "fedavg")
    assert found.trials[0].mean == validation(plain, 2)
    assert found.trials[1].mean != found.trials[0].mean


@pytest.mark.parametrize(("stop_at", "after_round"), [(1, 1), (2, 1), (3, 2)])
def test_a_search_that_was_stopped_goes_on(stop_at, after_round, tmp_path):
    def search(folder, observer):
        return intarsia.tune(BASE, grid=RATES, seeds=2, out=tmp_path / folder, observer=observer)

    whole = search("whole", Counting())
    with pytest.raises(KeyboardInterrupt, match=r"give the same command with --out .*stopped"):
        search("stopped", Counting(stop_at, after_round))
    rest = Counting()
    found = search("stopped", rest)
    all_runs = [(1, 0), (1, 1), (2, 0), (2, 1)]
    assert rest.runs == all_runs[stop_at - 1 :]
    assert rest.rounds == 2 * (4 - stop_at) + 2 - after_round
    assert found.table == whole.table
    for name in ("trials.json", "best.toml", "tune.json"):
        assert (found.path / name).read_bytes() == (whole.path / name).read_bytes()
    again = Counting()
    assert search("stopped", again).table == whole.table
    assert again.runs == []


def test_a_run_that_was_killed_before_its_first_line(tmp_path):
    found = intarsia.tune(BASE, grid=RATES, out=tmp_path / "t")
    folder = found.path / found.trials[1].runs[0].folder
    shutil.rmtree(folder)
    (folder / "state").mkdir(parents=True)
    for left in ("metrics.jsonl", "state/lock", ".settings.toml.7-7.draft"):
        (folder / left).touch()
    assert intarsia.tune(BASE, grid=RATES, out=tmp_path / "t").table == found.table


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"grid": {"training.lr": [0.01, 0.2]}}, r"grid.training.lr: \[0.01, 0.3\] there, \[0.01, 0.2\] now"),
        ({"changes": ["rounds=3"]}, "settings.rounds: 2 there, 3 now"),
        ({"seeds": 2}, r"seeds: \[0\] there, \[0, 1\] now"),
        ({"by": "best"}, "choice.round: last there, best now"),
    ],
)
def test_another_search_in_the_same_folder_is_refused(changed, message, tmp_path):
    intarsia.tune(BASE, grid=RATES, out=tmp_path / "t")
    before = {p: p.read_bytes() for p in (tmp_path / "t").rglob("*") if p.is_file()}
    with pytest.raises(RunFolderError, match=message):
        intarsia.tune(BASE, **{"grid": RATES, **changed}, out=tmp_path / "t")
    assert {p: p.read_bytes() for p in (tmp_path / "t").rglob("*") if p.is_file()} == before


def test_another_engine_may_go_on(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        intarsia.tune(BASE, grid=RATES, out=tmp_path / "t", observer=Counting(1))
    found = intarsia.tune(
        BASE, changes=["engine.name=local", "engine.workers=1"], grid=RATES, out=tmp_path / "t"
    )
    assert [t.state for t in found.trials] == ["done", "done"]


def test_folders_of_others_are_left_alone(tmp_path):
    (tmp_path / "letter.txt").write_text("dear")
    with pytest.raises(RunFolderError, match="is used, and not by a search"):
        intarsia.tune(BASE, grid=RATES, out=tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["letter.txt"]


def test_two_searches_at_once_are_refused(tmp_path):
    class Meddling(TuningObserver):
        def trial_done(self, trial, trials, measure):
            with pytest.raises(RunFolderError, match="in use by a search"):
                intarsia.tune(BASE, grid=RATES, out=tmp_path / "t")

    intarsia.tune(BASE, grid=RATES, out=tmp_path / "t", observer=Meddling())


def test_a_trial_that_diverges_is_recorded_and_never_wins(tmp_path):
    grid = {"training.lr": [1e30, 0.1]}
    found = intarsia.tune(BASE, grid=grid, seeds=2, out=tmp_path / "t")
    failed, good = found.trials
    assert (failed.state, good.state) == ("failed", "done")
    assert "updates were accepted" in failed.reason
    assert "intarsia resume" not in failed.reason
    assert (failed.mean, len(failed.runs)) == (None, 1)
    assert found.best is good
    assert [row["trial"] for row in found.table] == [2, 1]
    again = intarsia.tune(BASE, grid=grid, seeds=2, out=tmp_path / "t")
    assert [(t.state, t.mean) for t in again.trials] == [("failed", None), ("done", good.mean)]
    with pytest.raises(TuningError, match="every trial failed"):
        intarsia.tune(BASE, grid={"training.lr": [1e30, 1e31]}, out=tmp_path / "none")


def test_a_run_with_a_client_that_could_not_be_scored_fails(tmp_path):
    """Means over different clients cannot be compared, so a run without all of them has no score."""
    found = intarsia.tune(BASE, grid=RATES, out=tmp_path / "t")
    first, second = (runs_of(found, trial)[0].path for trial in found.trials)
    rows = (first / "metrics.jsonl").read_text().splitlines()
    read = [json.loads(row) for row in rows]
    lost = next(i for i, r in enumerate(read) if (r["split"], r["round"]) == ("validation", 2))
    rows[lost] = json.dumps({**read[lost], "loss": None})
    (first / "metrics.jsonl").write_text("\n".join(rows))
    event = {
        "round": 2,
        "exchange": "evaluate",
        "kind": "failed",
        "client": "client-01",
        "message": "out of memory",
    }
    (second / "events.jsonl").write_text(json.dumps(event) + "\n")
    with pytest.raises(TuningError, match=r"the validation loss of client .* is not finite"):
        intarsia.tune(BASE, grid=RATES, out=tmp_path / "t")
    states = json.loads((tmp_path / "t" / "trials.json").read_text())
    assert [row["reason"] for row in states][1] == "out of memory"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"grid": {"training.lrr": [0.1]}},
            "point lrr=0.1: training.lrr: unknown setting; did you mean 'lr'",
        ),
        ({"grid": {"training.lr": [0.1, -1]}}, "point lr=-1: training.lr: input should be greater"),
        ({"grid": {"objective.mu": [0.1]}}, "objective.mu: unknown setting"),
        ({"grid": {"method": ["fedprox", "fedprx"]}}, "point method=fedprx.*did you mean 'fedprox'"),
        ({"grid": {"model.hidden": [[8], ["x"]]}}, r"point hidden=\[x\]: model.hidden.0"),
        ({"grid": {"training.loss": ["auto", "huber"]}}, "point loss=huber: training.loss"),
        ({"grid": {"training.lr": []}}, "training.lr: there is no value"),
        ({"grid": {"training.lr": "0.1"}}, "training.lr: give a list of values"),
        ({"grid": {"training.lr": [0.1, 0.10]}}, "training.lr: 0.1 is in the grid twice"),
        ({"grid": {"training.lr": [object()]}}, "is no plain value"),
        ({"grid": {"seed": [1, 2]}}, "seed is not tuned"),
        ({"grid": {"training.": [1, 2]}}, "'training.' is no setting"),
        ({"grid": {}}, "nothing to search"),
        ({"ranges": {"training.lr": (0.1, 1.0)}}, "a range needs a number of points"),
        ({"ranges": {"training.lr": (0.1, 1.0)}, "grid": RATES, "random": 2}, "a grid or a range, not both"),
        (
            {"ranges": {"training.lr": (0, 1.0, "log")}, "random": 2},
            "training.lr: a log range starts above 0",
        ),
        ({"ranges": {"training.lr": (1.0, 0.1)}, "random": 2}, "up to a larger one"),
        ({"ranges": {"training.lr": (0.1, 1.0, "cubic")}, "random": 2}, "lin or log, not 'cubic'"),
        ({"grid": RATES, "random": 0}, "at least one point"),
        ({"grid": RATES, "seeds": 0}, "at least one"),
        ({"grid": RATES, "by": "luck"}, "not by 'luck'"),
        (
            {"grid": RATES, "changes": ["population.validation=0"]},
            "set population.validation, for example to 0.2",
        ),
    ],
)
def test_what_is_wrong_is_told_before_anything_runs(arguments, message, tmp_path):
    with pytest.raises(SettingsError, match=message):
        intarsia.tune(BASE, **arguments, out=tmp_path / "t")
    assert not (tmp_path / "t").exists()


def test_own_data_without_validation(tmp_path):
    data = own_data()
    for entry in data.values():
        del entry["validation"]
    with pytest.raises(SettingsError, match="give the clients a split 'validation'"):
        intarsia.tune(OWN, grid=RATES, data=data, out=tmp_path / "t")


def test_points_with_other_data_are_told_apart(tmp_path):
    found = intarsia.tune(BASE, grid={"population.labels": [4, 3]}, out=tmp_path / "t")
    assert any("not of the same validation samples" in warning for warning in found.warnings)


def test_random_search_repeats_for_a_seed():
    axes = {"training.epochs": (1, 4), "training.lr": (0.001, 1, "log"), "objective.mu": (0.0, 2.0)}
    space = Space.of({"method": ["fedavg", "fedprox"]}, axes, 40)
    points = space.points(0)
    assert points == space.points(0)
    assert points != space.points(1)
    assert points[:5] == Space.of({"method": ["fedavg", "fedprox"]}, axes, 5).points(0)
    assert {p["training.epochs"] for p in points} == {1, 2, 3, 4}
    assert all(isinstance(p["training.lr"], float) and 0.001 <= p["training.lr"] <= 1 for p in points)
    assert 12 <= sum(p["training.lr"] < 0.0316 for p in points) <= 28
    assert all(0 <= p["objective.mu"] <= 2 for p in points)


def test_random_search_takes_no_point_twice():
    grid = {"a": [1, 2, 3], "b": [True, False]}
    every = Space.of(grid, {}).points(0)
    drawn = Space.of(grid, {}, 6).points(0)
    assert len(every) == 6
    assert sorted(map(str, drawn)) == sorted(map(str, every))
    assert len(Space.of(grid, {}, 100).points(0)) == 6
    few = Space.of({}, {"a": (1.0, 1.0001)}, 5).points(0)
    assert 1 <= len(few) < 5


def test_a_table_goes_in_before_what_lies_in_it(tmp_path):
    grid = {"objective.mu": [0.5], "objective": ["proximal"]}
    found = intarsia.tune(BASE, grid=grid, out=tmp_path / "t")
    assert found.settings.objective == {"name": "proximal", "mu": 0.5}


def test_numpys_numbers_are_plain_numbers():
    space = Space.of({"training.lr": np.logspace(-2, 0, 3), "training.epochs": np.arange(1, 3)}, {})
    assert json.dumps(space.points(0)[0]) == '{"training.lr": 0.01, "training.epochs": 1}'


@pytest.mark.parametrize(
    ("axis", "best", "edge"),
    [
        ([0.1, 0.01, 1.0], 1.0, "is the largest of the grid"),
        ([0.1, 0.01, 1.0], 0.01, "is the smallest of the grid"),
        ([0.1, 0.01, 1.0], 0.1, ""),
        ([0, 1, 2], 0, ""),
        ([0.1], 0.1, ""),
        ([True, False], True, ""),
        (["a", "b"], "b", ""),
        ((0.001, 1.0, "log"), 0.9, "lies at the upper end of the range 0.001:1"),
        ((0.001, 1.0, "log"), 0.0011, "lies at the lower end of the range 0.001:1"),
        ((0.001, 1.0, "log"), 0.01, ""),
        ((0.0, 1.0), 0.001, ""),
        ((1, 8), 8, "lies at the upper end of the range 1:8"),
        ((1, 8), 7, ""),
    ],
)
def test_the_edge_of_what_was_searched(axis, best, edge):
    kind = (
        {"ranges": {"x": axis}, "grid": {}}
        if isinstance(axis, tuple)
        else {"grid": {"x": axis}, "ranges": {}}
    )
    told = Space.of(**kind, random=1).edges({"x": best})
    assert told == ([f"x: the best value, {best}, {edge}: search beyond it too"] if edge else [])


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("1,2", ["1", "2"]),
        ("a", ["a"]),
        ("[64,32], [8]", ["[64,32]", "[8]"]),
        ("[[1,2],[3]],x", ["[[1,2],[3]]", "x"]),
        ('"a,b",c', ['"a,b"', "c"]),
        ("'[',2", ["'['", "2"]),
        ('{name="proximal",mu=1},plain', ['{name="proximal",mu=1}', "plain"]),
        ("1,,2", ["1", "", "2"]),
    ],
)
def test_values_are_split_at_commas_outside_brackets_and_quotes(text, values):
    assert split_values(text) == values


def test_grids_and_ranges_as_they_are_typed():
    texts = [
        "training.lr=0.01,1e-3",
        "model.hidden=[64,32],[8]",
        "sharing.head=fc2,fc3",
        'sharing.by="",device',
    ]
    assert parse_grid(texts) == {
        "training.lr": [0.01, 1e-3],
        "model.hidden": [[64, 32], [8]],
        "sharing.head": ["fc2", "fc3"],
        "sharing.by": ["", "device"],
    }
    table = parse_grid(['objective={name="proximal",mu=1.0},plain'])
    assert table == {"objective": [{"name": "proximal", "mu": 1.0}, "plain"]}
    assert (
        name_of({"objective": table["objective"][0], "x.a": [1, True]})
        == "objective={name=proximal,mu=1.0} a=[1,true]"
    )
    assert name_of({"x.lr": 1, "y.lr": 2}) == "x.lr=1 y.lr=2"
    ranges = parse_ranges(["training.lr=0.001:1:log", "training.epochs=1:5"])
    assert ranges == {"training.lr": Range(0.001, 1, "log"), "training.epochs": Range(1, 5)}
    assert (ranges["training.lr"].whole, ranges["training.epochs"].whole) == (False, True)
    for wrong in ("training.lr", "training.lr=", "=1"):
        with pytest.raises(SettingsError, match="says no values"):
            parse_grid([wrong])
    with pytest.raises(SettingsError, match="a value is missing"):
        parse_grid(["training.lr=1,,2"])
    with pytest.raises(SettingsError, match="given twice"):
        parse_grid(["a=1", "a=2"])
    with pytest.raises(SettingsError, match="a range is low:high"):
        parse_ranges(["a=1"])
    with pytest.raises(SettingsError, match="from a number"):
        parse_ranges(["a=low:high"])


def test_the_command(tmp_path):
    command = ["tune", "quickstart", *QUICK, "--grid", "training.lr=0.001,0.3,1e30", "--out", "t"]
    shown = call(*command, "--seeds", "2", cwd=tmp_path).stdout
    assert "2/3 lr=0.3: validation accuracy" in shown
    assert "3/3 lr=1e+30: failed: exchange 'train': 0 of 4 updates were accepted" in shown
    lines = [line.split() for line in shown.splitlines() if "│" in line]
    assert lines[0][1] == "best"
    assert lines[0][5] == "0.3"
    assert "±" in lines[0]
    assert "failed" in lines[-1]
    assert "Best settings: t/best.toml" in shown
    report = json.loads(call(*command, "--seeds", "2", "--json", cwd=tmp_path).stdout)
    assert report["best"]["point"] == {"training.lr": 0.3}
    assert report["settings"]["training"]["lr"] == 0.3
    assert [row["trial"] for row in report["trials"]] == [2, 1, 3]
    call("compare", "t/trials", "--json", cwd=tmp_path)
    refused = call(*command, cwd=tmp_path, code=2).stderr
    assert "t holds another search" in refused
    assert "seeds: [0, 1] there, [0] now" in refused


def test_a_terminal_shows_bars_and_no_test_accuracy(tmp_path):
    console = Console(file=io.StringIO(), force_terminal=True, width=120)
    with TuningProgress(console) as progress:
        found = intarsia.tune(BASE, grid=RATES, seeds=2, out=tmp_path / "t", observer=progress)
    shown = console.file.getvalue()
    assert "2/2 lr=0.3 seed 1" in shown
    assert shown.count("accuracy") == shown.count("validation accuracy") == 2
    assert f"lr=0.3: validation accuracy {100 * found.trials[1].mean:.1f} ±" in shown


def test_the_command_at_random_and_at_the_edge(tmp_path):
    command = [
        "tune",
        "quickstart",
        *QUICK,
        "--range",
        "training.lr=0.2:0.3",
        "--random",
        "1",
        "--grid",
        "training.epochs=1,4",
    ]
    shown = call(*command, "--seed", "3", cwd=tmp_path).stdout
    assert "runs/tune-quickstart-1/best.toml" in shown
    (row,) = json.loads((tmp_path / "runs/tune-quickstart-1/trials.json").read_text())
    assert 0.2 <= row["point"]["training.lr"] <= 0.3
    edge = "largest" if row["point"]["training.epochs"] == 4 else "smallest"
    assert (
        f"Warning: training.epochs: the best value, {row['point']['training.epochs']}, is the {edge}" in shown
    )


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--grid", "training.lrate=1"], 2, "training.lrate: unknown setting"),
        (
            ["--grid", "training.lr=0.1", "--set", "population.validation=0"],
            2,
            "--set population.validation=0.2",
        ),
        ([], 2, "nothing to search"),
        (["--grid", "training.lr=1e30"], 1, "every trial failed (1)"),
    ],
)
def test_bad_commands(arguments, code, message, tmp_path):
    done = call("tune", "quickstart", *QUICK, *arguments, cwd=tmp_path, code=code)
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_ctrl_c_says_how_to_go_on(tmp_path):
    command = [sys.executable, "-m", "intarsia", "tune", "quickstart", *QUICK, "--set", "rounds=10000"]
    process = subprocess.Popen(
        [*command, "--grid", "training.lr=0.1,0.2", "--out", "t"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
    )
    end = time.monotonic() + 60
    while time.monotonic() < end:
        if any(path.stat().st_size for path in tmp_path.glob("t/trials/*/metrics.jsonl")):
            break
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "give the same command with --out t" in errors


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"grid": "training.lr=1"}, "grid: give a dict by setting.*, not 'training.lr=1'"),
        ({"grid": ["training.lr=1"]}, "grid: give a dict by setting"),
        ({"grid": {1: [1]}}, "grid: give a dict by setting"),
        ({"grid": RATES, "ranges": [0, 1]}, "ranges: give a dict by setting"),
        ({"grid": RATES, "random": "2"}, "random: give a whole number of points, not '2'"),
        ({"grid": RATES, "random": 1.5}, "random: give a whole number of points, not 1.5"),
        ({"grid": RATES, "seeds": "3"}, "seeds: give a number of them, or a list .*, not '3'"),
        ({"grid": RATES, "seeds": None}, "seeds: give a number of them, or a list .*, not None"),
        ({"grid": RATES, "seeds": [-1]}, "seeds: give a number of them, or a list"),
        ({"grid": RATES, "seeds": [0.5]}, "seeds: give a number of them, or a list"),
        ({"grid": RATES, "observer": intarsia.Observer()}, "observer: .* intarsia.TuningObserver"),
        ({"grid": RATES, "out": 3}, "out: give a path, not 3"),
    ],
)
def test_arguments_of_a_wrong_kind_are_named(wrong, message, tmp_path):
    with pytest.raises(SettingsError, match=message):
        intarsia.tune(BASE, **{"out": tmp_path / "t", **wrong})
    assert not (tmp_path / "t").exists()


def test_a_damaged_record_of_a_search_is_named(tmp_path):
    (tmp_path / "t").mkdir()
    (tmp_path / "t" / "tune.json").write_text("{")
    with pytest.raises(RunFolderError, match=r"tune\.json is damaged"):
        intarsia.tune(BASE, grid=RATES, out=tmp_path / "t")
