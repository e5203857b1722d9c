"""Another number of rounds: a run goes on past its end as if it had been meant to; what is refused says what differs."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
from typer.testing import CliRunner

import intarsia
from intarsia.cli.app import app
from intarsia.core import CheckpointError, DataError, IntarsiaWarning, SettingsError
from tests.conftest import NEEDS, SMALL
from tests.golden.plays import digests

VALIDATED = "population.validation=0.2"


def play(folder: Path, *changes: str, **more) -> intarsia.Run:
    return intarsia.run(SMALL, changes=changes, out=folder, **more)


class Stop(intarsia.Observer):
    """Stops a run after some rounds."""

    def __init__(self, after: int) -> None:
        self.after = after

    def round_done(self, report: intarsia.RoundReport) -> None:
        self.done = report.round

    def wants_stop(self) -> bool:
        return self.done >= self.after


@pytest.mark.parametrize("engine", ["debug", "local"])
def test_two_rounds_and_two_more_are_four(engine, tmp_path):
    changes = ["method=fedper", "evaluation.every=3", VALIDATED, f"engine.name={engine}", "engine.workers=2"]
    whole = play(tmp_path / "whole", *changes, "rounds=4")
    play(tmp_path / "longer", *changes, "rounds=2")
    with warnings.catch_warnings():
        warnings.simplefilter("error", IntarsiaWarning)
        warnings.simplefilter("ignore", intarsia.JudgedWarning)
        longer = intarsia.resume(tmp_path / "longer", rounds=4)
    assert digests(longer) == digests(whole)
    assert longer.settings == whole.settings
    assert (longer.path / "settings.toml").read_text() == (whole.path / "settings.toml").read_text()
    for key in ("accuracy", "bytes", "evaluation_bytes", "rounds", "finished", "best_on_validation"):
        assert longer.summary[key] == whole.summary[key]


def test_the_baseline_of_a_longer_run_goes_on_too(tmp_path):
    changes = ["evaluation.baseline=local", "population.clients=4", "training.batch_size=64"]
    whole = play(tmp_path / "whole", *changes, "rounds=3")
    play(tmp_path / "longer", *changes, "rounds=2")
    longer = intarsia.resume(tmp_path / "longer", rounds=3)
    assert longer.judged == whole.judged
    assert digests(longer) == digests(whole)
    alone = [intarsia.open_run(run.path / "baseline-local") for run in (longer, whole)]
    assert digests(alone[0]) == digests(alone[1])


def test_a_run_that_was_stopped_gets_another_end(tmp_path):
    changes = ["evaluation.every=5", "checkpoints.every=2"]
    play(tmp_path / "cut", *changes, "rounds=9", observer=Stop(3))
    shorter = intarsia.resume(tmp_path / "cut", rounds=3)
    assert digests(shorter) == digests(play(tmp_path / "three", *changes, "rounds=3"))
    assert shorter.summary["finished"]


@pytest.mark.parametrize("moment", ["before", "after"])
def test_killed_while_the_length_changes(moment, tmp_path, monkeypatch):
    play(tmp_path / "run", "rounds=2")
    from intarsia.runs import RunFolder

    usual = RunFolder.set_rounds

    def killed(self, rounds):
        if moment == "after":
            usual(self, rounds)
        raise KeyboardInterrupt

    monkeypatch.setattr(RunFolder, "set_rounds", killed)
    with pytest.raises(KeyboardInterrupt):
        intarsia.resume(tmp_path / "run", rounds=4)
    monkeypatch.undo()
    done = intarsia.resume(tmp_path / "run")
    assert done.summary["rounds"] == (4 if moment == "after" else 2)
    assert digests(intarsia.resume(tmp_path / "run", rounds=4)) == digests(
        play(tmp_path / "whole", "rounds=4")
    )


def test_folders_without_a_copy_of_their_settings_go_on_too(tmp_path):
    run = play(tmp_path / "run", "rounds=2")
    for copy in (run.path / "state").glob("settings-*.toml"):
        copy.unlink()
    shown = CliRunner().invoke(app, ["resume", str(run.path), "--rounds", "3", "--json"])
    assert shown.exit_code == 0, shown.output
    assert run.summary["rounds"] == 3
    assert run.state().round == 3  # a run that was opened before goes on with what is there now


def test_fewer_rounds_than_are_played_are_refused(tmp_path):
    run = play(tmp_path / "run", "rounds=3")
    with pytest.raises(
        SettingsError, match=r"has played 3 rounds already, 2 are fewer: give 3 or more, or start a new"
    ):
        intarsia.resume(run.path, rounds=2)
    with pytest.raises(SettingsError, match="rounds: give a number, for example 300"):
        intarsia.resume(run.path, rounds="many")  # type: ignore[arg-type]
    assert intarsia.open_run(run.path).summary["finished"]


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        (["training.schedule=cosine"], r"training\.schedule \(cosine\)"),
        (["method=fedmn", *NEEDS["fedmn"]], r"method\.last_temperature"),
    ],
)
def test_what_depends_on_the_length_is_told(changes, named, tmp_path):
    play(tmp_path / "run", *changes, "rounds=3")
    with pytest.warns(
        IntarsiaWarning, match=f"{named} depends on the number of rounds: the 2 that are played"
    ):
        intarsia.resume(tmp_path / "run", rounds=4)


def test_without_an_earlier_checkpoint_the_last_round_stays_and_this_is_told(tmp_path):
    play(tmp_path / "run", "rounds=3", "checkpoints.keep=1")
    with pytest.warns(
        IntarsiaWarning, match=r"round 3 was played as in a run of 3 rounds.*checkpoints\.keep = 1"
    ):
        assert intarsia.resume(tmp_path / "run", rounds=4).summary["rounds"] == 4


def test_a_setting_that_was_edited_is_named(tmp_path):
    run = play(tmp_path / "run", "rounds=2")
    file = run.path / "settings.toml"
    file.write_text(file.read_text().replace("lr = 0.1", "lr = 0.2"))
    with pytest.raises(CheckpointError, match=r"with other settings than .*\(training\.lr: 0\.1, now 0\.2\)"):
        intarsia.resume(run.path)


def rows(count: int, start: float = 0.0) -> str:
    return "".join(f"{'ab'[i % 2]},{start + i},{i // 2 % 2}\n" for i in range(count))


@pytest.mark.parametrize(
    ("after", "message"),
    [
        (rows(24) + "c,1,0\nc,2,1\nc,3,1\n", "client 'c' was not there"),
        (rows(24).replace("b,", "c,"), "client 'b' is not there any more\n  client 'c' was not there"),
        (rows(30), r"client 'a' has 12 train samples, had 10, 3 test samples, had 2"),
        (
            rows(24).replace("b,5.0,", "b,5.5,"),
            "client 'b' has as many samples as before, but other rows, inputs",
        ),
    ],
)
def test_whose_data_differs_is_said(after, message, tmp_path):
    file = tmp_path / "t.csv"
    file.write_text("client,heat,label\n" + rows(24))
    settings = {**SMALL, "rounds": 1, "population": {"name": "files", "path": str(file)}, "sharing": {}}
    run = intarsia.run(settings, out=tmp_path / "run")
    file.write_text("client,heat,label\n" + after)
    with pytest.raises(DataError, match=message):
        intarsia.resume(run.path, rounds=2)
    assert intarsia.open_run(run.path).settings.rounds == 1
