"""The controls of ModFL's studies."""

from __future__ import annotations

import pytest
from sklearn.metrics import adjusted_rand_score

import intarsia
from intarsia.core import SettingsError
from intarsia.papers import get


def random_cohorts(seed: int) -> dict[str, object]:
    study = get("modfl-table1")
    trials = study.runs(study.scales["small"], seed)
    return next(trial.settings["sharing"] for trial in trials if trial.name == "Random cohorts P=3")


def test_random_cohorts_are_a_control(tmp_path):
    groups = []
    for seed in (0, 1):
        sharing = {**random_cohorts(seed), "number": 5}
        settings = {**intarsia.load("quickstart").model_dump(), "method": "modfl", "sharing": sharing}
        run = intarsia.run({**settings, "rounds": 1}, out=tmp_path / str(seed))
        rows = [row for row in run.traffic if row["block"] == "operation"]
        groups.append({row["client"]: row["group"] for row in rows})
        given = [run.client(name).info.cohort for name in run.clients]
        assert len(set(groups[-1].values())) == 5
        assert abs(adjusted_rand_score(given, [groups[-1][name] for name in run.clients])) < 0.2
        devices = {run.client(row["client"]).info.device for row in run.traffic}
        assert {row["group"] for row in run.traffic if row["block"] == "configuration"} == devices
    assert groups[0] != groups[1]  # each seed has a draw of its own


def test_the_method_itself_knows_no_random_cohorts():
    with pytest.raises(SettingsError, match="cohorts"):
        intarsia.preview("quickstart", changes=["method=modfl", "sharing.cohorts=random"])
