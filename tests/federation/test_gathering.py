"""Updates that are merged once all are there: bounded, compared, remembered."""

from __future__ import annotations

import pytest

import intarsia
from intarsia.attacks.attackers import attackers_of
from intarsia.attacks.engine import AttackedEngine
from intarsia.attacks.rules import ATTACKS
from intarsia.core import IntarsiaWarning, SettingsError
from intarsia.experiment.build import Experiment
from intarsia.report.sections.reputation import Reputations
from tests.conftest import NEEDS
from tests.golden.plays import digests

TRIMMED = "merge={name='trimmed', f=0.25, mixing=true}"
GUARDED = ["defence={norm='auto', norm_times=1.2, far=1.2, leave_out=2}", "population.generations=['8x8']"]


class StopAfterOne(intarsia.Observer):
    """Wants to stop between two rounds."""

    def wants_stop(self):
        return True


@pytest.fixture
def flipping(monkeypatch):
    """Put clients that flip and scale into every engine; return their names of a run's clients."""
    usual = Experiment.engine

    def engine(self, folder):
        hostile = attackers_of(self.setup.population.infos, 0.25, 0, "lot")
        return AttackedEngine(usual(self, folder), self.setup, ATTACKS["flip-x5"], hostile)

    monkeypatch.setattr(Experiment, "engine", engine)
    return lambda run: set(attackers_of(run.setup.population.infos, 0.25, 0, "lot"))


@pytest.mark.parametrize(
    "changes", [[TRIMMED], GUARDED, [TRIMMED, *GUARDED]], ids=["merge", "defence", "both"]
)
def test_no_engine_and_no_number_of_workers_changes_a_bit(small_run, changes):
    runs = [
        small_run(*changes, out="debug"),
        small_run(*changes, "engine.name=local", "engine.workers=1", out="one"),
        small_run(*changes, "engine.name=local", "engine.workers=3", out="three"),
    ]
    assert digests(runs[0]) == digests(runs[1]) == digests(runs[2])
    assert runs[0].state().trust == runs[1].state().trust == runs[2].state().trust


def test_a_robust_merge_changes_what_is_merged(small_run):
    assert digests(small_run(out="mean")) != digests(small_run("merge=median", out="median"))


@pytest.mark.filterwarnings("ignore::intarsia.core.IntarsiaWarning")
def test_marks_survive_a_stop_bit_for_bit(small_run, flipping):
    changes = (*GUARDED, "rounds=4", "merge=median")
    stopped = small_run(*changes, out="stopped", observer=StopAfterOne())
    assert stopped.state().trust["marks"]
    whole = small_run(*changes, out="whole", observer=intarsia.Observer())
    again = intarsia.resume(stopped.path)
    assert digests(again) == digests(whole)
    assert again.state().trust == whole.state().trust


@pytest.mark.filterwarnings("ignore::intarsia.core.IntarsiaWarning")
def test_who_goes_too_far_is_scaled_back_marked_and_left_out(small_run, flipping):
    run = small_run(*GUARDED, "merge=median", "rounds=4")
    hostile = flipping(run)
    out = run.state().trust["left out"]
    assert hostile <= out.keys()
    kinds = {(event["kind"], event["client"]) for event in run.events}
    for name in hostile:
        assert {("clipped", name), ("far", name), ("left out", name)} <= kinds
    asked = {row["client"] for row in run.traffic if row["round"] == 4 and row["purpose"] == "train"}
    assert not asked & out.keys(), "who is left out is not asked any more"
    scored = {row["client"] for row in run.metrics if row["round"] == 4 and row["split"] == "test"}
    assert hostile <= scored, "but its own model is evaluated like all others"
    assert len(out) <= 4, "half of the clients stay in, whatever the rule says"


def test_a_fixed_bound_holds_for_every_client(small_run):
    run = small_run("defence.norm=0.01", "rounds=1")
    clipped = [event for event in run.events if event["kind"] == "clipped"]
    assert {event["client"] for event in clipped} == set(run.setup.population.clients)
    assert all("it counts with 0.01" in event["message"] for event in clipped)
    begun = run.setup.initial_pool()
    for address, block in ((a, run.state().pool.get(a)) for a in begun):
        change = sum(
            float((t - begun.get(address).tensors[n]).square().sum()) for n, t in block.tensors.items()
        )
        assert 0 < change**0.5 <= 0.0101


def test_samples_count_no_more_than_their_bound(small_run):
    run = small_run("defence.max_samples=1", "rounds=1")
    from intarsia.federation import Planner

    assert set(Planner(run.setup).weights().values()) == {1}
    assert digests(run) != digests(small_run("rounds=1", out="usual"))


def test_a_claim_far_above_the_others_counts_three_times_the_median():
    from intarsia.trust import Defence

    assert Defence(max_samples="auto").most_samples([10, 12, 14, 100000]) == 39
    assert Defence().most_samples([10, 12]) == 0


def test_addresses_that_bear_none_are_named_before_and_in_the_run(small_run):
    changes = ("method=modfl", "sharing={}", "population.cohorts=3", "merge=trimmed")
    with pytest.warns(IntarsiaWarning, match="operation@cohort-. has . holders"):
        run = small_run(*changes, "rounds=2")
    told = [e for e in run.events if e["kind"] == "warning" and "tolerates no hostile" in e["message"]]
    addresses = {e["message"].split(":")[1].split(" has ")[0] for e in told if e["round"] == 1}
    assert len(addresses) == len([e for e in told if e["round"] == 1]) > 0, "once an address"


@pytest.mark.parametrize("method", ["fednova", "heterofl"])
def test_a_method_that_is_its_merge_keeps_it(small_run, method):
    changes = [f"method={method}", *NEEDS.get(method, [])]
    with pytest.raises(SettingsError, match=f"method '{method}' is its own merge"):
        small_run(*changes, "merge=median")
    run = small_run(*changes, "defence={norm=0.5, far=3.0}", "rounds=2")
    assert run.summary["finished"]
    assert any(event["kind"] == "clipped" for event in run.events)


def test_found_cohorts_are_merged_by_the_same_rule(small_run):
    changes = (
        "method=modfl",
        "sharing.cohorts=found",
        "sharing.number=2",
        "rounds=2",
        "population.cohorts=2",
    )
    changes = (*changes, "population.generations=['8x8']", "sharing.by=''")
    robust = small_run(*changes, "merge=median", out="median")
    plain = small_run(*changes, out="mean")
    assert {move["client"] for move in robust.groups} == {move["client"] for move in plain.groups}
    assert digests(robust) != digests(plain)


def test_settings_without_a_defence_do_not_name_it(small_run):
    run = small_run("rounds=1")
    assert "defence" not in (run.path / "settings.toml").read_text()
    guarded = small_run("rounds=1", "defence.norm=5.0", out="guarded")
    assert "[defence]" in (guarded.path / "settings.toml").read_text()
    assert guarded.state().trust["norms"]["train"]
    assert not run.state().trust


@pytest.mark.filterwarnings("ignore::intarsia.core.IntarsiaWarning")
def test_the_page_shows_who_was_marked_and_left_out(small_run, flipping):
    run = small_run(*GUARDED, "merge=median", "rounds=4")
    section = Reputations.read(run)
    assert section is not None
    ((heading, text),) = section.parts("mine")
    assert heading == "Reputation: mine"
    for name in flipping(run):
        assert section.counts[name]["clipped"] == run.state().trust["counts"][name]["clipped"]
        assert name in text
        assert f"round {section.left_out[name]}" in text
    assert Reputations.read(small_run("rounds=1", out="plain")) is None
