"""Tables of runs as pandas frames."""

from __future__ import annotations

import sys

import pytest

import intarsia
from intarsia.core import IntarsiaError, SettingsError
from tests.conftest import SMALL


@pytest.fixture(scope="module")
def seeds(tmp_path_factory):
    changes = ["rounds=2", "population.clients=4"]
    return intarsia.run(SMALL, changes=changes, seeds=[3, 5], out=tmp_path_factory.mktemp("frames") / "runs")


def test_metrics_are_a_tidy_frame(seeds):
    run = seeds.runs[0]
    frame = run.frame()
    assert frame.to_dict("records") == run.metrics
    own = frame[(frame.split == "test") & (frame["round"] == 2)]
    assert own.accuracy.mean() == pytest.approx(run.summary["accuracy"]["mean"])


def test_other_tables_join_by_client(seeds):
    run = seeds.runs[0]
    traffic = run.frame("traffic")
    up = traffic[(traffic.purpose == "train") & (traffic.direction == "up")]
    assert up.bytes.sum() == run.summary["bytes"]["up"]
    clients = run.frame("clients")
    assert list(clients["samples.train"]) == [run.client(name).info.samples["train"] for name in run.clients]
    joined = run.frame("judged").merge(clients, on="client")
    assert len(joined) == 4
    assert joined.groupby("device")["metrics.accuracy"].mean().between(0, 1).all()
    assert not [column for column in joined if "tally" in column]


def test_an_empty_table_has_its_columns(seeds):
    groups = seeds.runs[0].frame("groups")
    assert groups.empty
    assert set(groups.columns) == {"round", "client", "block", "group"}


def test_seeds_are_in_one_frame(seeds):
    frame = seeds.frame()
    assert frame.columns[0] == "seed"
    assert set(frame.seed) == {3, 5}
    assert len(frame) == sum(len(run.metrics) for run in seeds.runs)
    assert frame.index.is_unique
    last = frame[(frame.split == "test") & (frame["round"] == 2)].groupby("seed").accuracy.mean()
    assert last[5] == pytest.approx(seeds.runs[1].summary["accuracy"]["mean"])


def test_what_is_not_there_is_named(seeds, monkeypatch):
    with pytest.raises(SettingsError, match="no table 'metric'; did you mean 'metrics'"):
        seeds.runs[0].frame("metric")
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(IntarsiaError, match=r"frame gives .* pip install 'intarsia\[pandas\]'"):
        seeds.runs[0].frame()
