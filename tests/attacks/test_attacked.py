"""Runs with attackers in them."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from intarsia.attacks import ATTACKS, Record, cases_of
from intarsia.attacks.attacked import play
from intarsia.cli.app import app
from intarsia.core import SettingsError
from intarsia.experiment import load, run
from tests.conftest import NEEDS, SMALL

ALONE = {
    **SMALL,
    "sharing": {},
    "population": {"name": "digits", "clients": 10, "generations": ["8x8"], "labels": 10},
}
ALONE |= {"model": {"name": "logistic"}, "rounds": 4, "training": {"lr": 0.3, "epochs": 2, "batch_size": 16}}


def test_attackers_harm_the_mean_and_a_robust_merge_bears_them():
    plain, robust = load(ALONE), load(ALONE, ["merge={name='median', mixing=true}"])
    clean = play(plain, None, 0.2)["honest"]
    assert play(plain, ATTACKS["flip-x5"], 0.2)["honest"] < clean - 0.3
    assert play(robust, ATTACKS["flip-x5"], 0.2)["honest"] > clean - 0.05


def test_without_an_attack_it_is_the_usual_run(tmp_path):
    rows = run(ALONE, out=tmp_path / "run").metrics
    last = {r["client"]: r["accuracy"] for r in rows if (r["round"], r["split"]) == (4, "test")}
    assert play(load(ALONE), None, 0.0)["honest"] == pytest.approx(sum(last.values()) / len(last))


@pytest.mark.parametrize("engine", ["debug", "local"])
@pytest.mark.parametrize("attack", sorted(ATTACKS))
def test_every_attack_runs_on_every_engine_alike(engine, attack):
    settings = load(SMALL, [f"engine.name={engine}", "rounds=1"])
    found = play(settings, ATTACKS[attack], 0.25)
    assert found["attackers"] == 2
    assert found == play(load(SMALL, ["rounds=1"]), ATTACKS[attack], 0.25)


@pytest.mark.parametrize("method", ["fedmn", "fedmd", "fedgh", "pfedclub"])
def test_answers_beside_blocks_are_poisoned(method):
    settings = load(SMALL, [f"method={method}", "rounds=1", *NEEDS.get(method, [])])
    assert play(settings, ATTACKS["answers"], 0.25)["attackers"] == 2


def test_updates_in_code_are_refused():
    with pytest.raises(SettingsError, match="leave `codec` out"):
        play(load(SMALL, ["codec=int8"]), ATTACKS["flip"], 0.2)


def test_a_record_goes_on_where_it_was_stopped(tmp_path, monkeypatch):
    cases = list(cases_of({"small": SMALL}, {"mean": ["rounds=1"]}, ["flip", "ipm"], [0.0, 0.25], [5]))
    assert [(case.attack, case.share) for case in cases] == [("none", 0.0), ("flip", 0.25), ("ipm", 0.25)]
    first = Record(tmp_path / "a.json").play(cases[:2])
    monkeypatch.setattr("intarsia.attacks.record.play", lambda *_: {"honest": 0.5, "attackers": 2})
    again = Record(tmp_path / "a.json").play(cases)
    assert again[:2] == first
    assert again[2]["honest"] == 0.5
    assert len(json.loads((tmp_path / "a.json").read_text())["rows"]) == 3


def test_a_file_that_is_no_record_is_left_alone(tmp_path):
    (tmp_path / "a.json").write_text('{"rows": [1]}')
    with pytest.raises(SettingsError, match="no record of attacks"):
        Record(tmp_path / "a.json")


def test_the_command_shows_a_table_and_writes_the_record(tmp_path):
    changes = ["rounds=1", "population.clients=8", "population.cohorts=2", "engine.name=debug"]
    asked = [
        "attack",
        "quickstart",
        "--attack",
        "flip",
        "--share",
        "0.25",
        "--merge",
        "mean",
        "--merge",
        "median",
    ]
    asked += [word for change in changes for word in ("--set", change)]
    asked += ["--out", str(tmp_path / "a.json")]
    done = CliRunner().invoke(app, asked, catch_exceptions=False)
    assert done.exit_code == 0
    assert "Accuracy of the honest clients" in done.output
    rows = json.loads((tmp_path / "a.json").read_text())["rows"]
    assert {(row["guard"], row["attack"]) for row in rows} == {
        (guard, attack) for guard in ("mean", "median") for attack in ("none", "flip")
    }
    with pytest.raises(SettingsError, match="there is no 'flop'"):
        CliRunner().invoke(app, ["attack", "quickstart", "--attack", "flop"], catch_exceptions=False)
