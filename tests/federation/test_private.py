"""Runs under client-level privacy: what is released, what it costs, what stops, what is refused."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch
from torch import nn

import intarsia
from intarsia.blocks import Address
from intarsia.core import SettingsError, chance
from intarsia.experiment import load
from intarsia.experiment.private import deployed
from intarsia.federation import RunStopped, Sampling
from intarsia.methods import METHODS
from intarsia.trust.accounting import Release, epsilon_of
from tests.conftest import NEEDS
from tests.federation.test_loop import StopAfterOne
from tests.golden.plays import digests

pytest.importorskip("dp_accounting")

PRIVATE = ("privacy.clip=0.5", "privacy.noise=0.8", "sampling.kind=poisson", "sampling.fraction=0.5")
REFUSED = {
    "clustered_fl": "directions of single updates",
    "fccl": "scores on the public samples",
    "fedbuff": "merge 'buffered'",
    "fedgh": "mean representation",
    "fedkemf": "knowledge network",
    "fedmd": "scores on the public samples",
    "fedmn": "scores of links",
    "fedmn+": "which blocks every client's network uses",
    "fednova": "merge 'nova'",
    "heterofl": "which labels a client has",
    "local": "shares nothing",
    "pfedclub": "teachers",
    "pfedclub+": "teachers",
    "pfedhr": "teachers",
}
"""The methods that give away more than merged blocks, and what is said of them."""


class Known(nn.Module):
    """A model of three numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.tensor([1.0, 2.0, 3.0]))
        self.register_buffer("count", torch.tensor(5))

    def forward(self, x):
        return torch.stack([x.sum(1) * self.w.sum(), -x.sum(1)], 1)


@intarsia.part
class Moves(intarsia.Method):
    """Every client goes where its name says."""

    name: ClassVar[str] = "moves"
    title: ClassVar[str] = "Moves"
    steps: ClassVar[dict[str, list[float]]] = {"near": [0.1, 0.0, 0.0], "far": [0.0, 30.0, 40.0]}

    def train(self, client):
        trained = client.train(self.objective)
        with torch.no_grad():
            client.model.w.copy_(torch.tensor([1.0, 2.0, 3.0]) + torch.tensor(self.steps[client.info.name]))
            client.model.count.fill_(99)
        return trained


def two_clients():
    x = torch.ones(4, 2)
    return {
        name: {"train": (x, torch.tensor([0, 1, 0, 1])), "test": (x, torch.tensor([0, 1, 0, 1]))}
        for name in ("near", "far")
    }


def test_a_release_by_hand(tmp_path):
    """Bound 1: `near` moves by (0.1, 0, 0), `far` by (0, 0.6, 0.8) of its (0, 30, 40); two of two are expected."""
    settings = {"rounds": 1, "privacy": {"clip": 1.0, "noise": 0.25}, "engine": {"name": "debug"}}
    run = intarsia.run(settings, data=two_clients(), model=Known(), method=Moves(), out=tmp_path / "run")
    noise = chance.numpy_generator(0, "privacy noise", 1, "train", "model@all", "w").standard_normal(3)
    expected = np.array([1.0, 2.0, 3.0]) + (np.array([0.1, 0.6, 0.8]) + 0.25 * 1.0 * noise) / 2
    block = run.state().pool.get(Address("model", "all"))
    assert block.tensors["w"].tolist() == pytest.approx(expected.tolist(), abs=1e-6)
    assert int(block.tensors["count"]) == 5  # a count is not released
    told = run.summary["privacy"]
    assert told["epsilon"] == epsilon_of({Release(1.0, 0.25): 1}, 2**-1.1)
    assert told["addresses"] == {"model@all": {"releases": 1, "epsilon": told["epsilon"]}}


def test_noise_falls_on_every_address_in_proportion_to_its_holders(small_run):
    """Nobody moves (no learning): what is left is noise of z C / (q holders) on every number of an address."""
    changes = (
        "method=modfl",
        "sharing.by=",
        "population.clients=40",
        "population.cohorts=2",
        "model.hidden=[200]",
    )
    run = small_run(*changes, *PRIVATE, "rounds=1", "training.lr=1e-12", "evaluation.metrics=[]")
    state, start = run.state(), run.setup.initial_pool()
    holders = {
        "configuration@8x8": 20,
        "configuration@4x4": 20,
        "operation@cohort-0": 20,
        "operation@cohort-1": 20,
    }
    assert {str(a) for a in state.pool} == holders.keys()
    for address in state.pool:
        now, before = state.pool.get(address).tensors, start.get(address).tensors
        moved = torch.cat([(now[n].double() - before[n]).flatten() for n in now])
        expected = 0.8 * 0.5 / (0.5 * holders[str(address)])
        assert float(moved.std()) == pytest.approx(expected, rel=5 / math.sqrt(2 * len(moved)))
        assert abs(float(moved.mean())) < 5 * expected / math.sqrt(len(moved))


def test_a_round_that_nobody_was_drawn_for_gets_its_noise_all_the_same(small_run):
    run = small_run(
        "privacy.clip=0.5", "privacy.noise=0.8", "sampling.kind=poisson", "sampling.fraction=0.001"
    )
    assert not [row for row in run.metrics if row["split"] == "train"]
    for address in run.state().pool:
        now, before = run.state().pool.get(address), run.setup.initial_pool().get(address)
        assert all(not torch.equal(now.tensors[n], before.tensors[n]) for n in now.tensors)
    assert run.summary["privacy"]["releases"] == 3


def test_everyone_counts_the_same_whatever_their_samples(small_run):
    run = small_run(*PRIVATE)
    samples = {info.train_samples for info in run.setup.population.infos}
    assert len(samples) > 1
    from intarsia.federation import Planner

    assert set(Planner(run.setup).weights().values()) == {1}


@pytest.mark.parametrize("more", [(), ("privacy.adaptive=true",), ("codec=int8",), ("method=modfl",)])
def test_engines_agree_and_a_run_that_was_stopped_goes_on_to_the_same_end(small_run, more):
    changes = (*PRIVATE, *more)
    whole = small_run(*changes, out="whole")
    other = small_run(*changes, "engine.name=local", "engine.workers=2", out="other")
    stopped = small_run(*changes, out="stopped", observer=StopAfterOne())
    assert stopped.summary["privacy"]["releases"] == 1
    again = intarsia.resume(stopped.path)
    assert digests(whole) == digests(other) == digests(again)
    assert whole.summary["privacy"] == other.summary["privacy"] == again.summary["privacy"]
    assert whole.summary["privacy"]["releases"] == 3


def test_rounds_that_are_lost_with_a_kill_count_once_by_the_seed_and_twice_by_the_system(small_run):
    """The newest checkpoint gone, as after a kill before it was written: the ledger knows of the round."""
    for kind, releases in {"keyed": 3, "system": 5}.items():
        run = small_run(*PRIVATE, f"privacy.randomness={kind}", "checkpoints.keep=3", out=kind)
        before = run.summary["privacy"]
        for number in (2, 3):
            (run.path / "state" / f"checkpoint-{number:06d}.json").unlink()
        after = intarsia.resume(run.path).summary["privacy"]
        assert (before["releases"], after["releases"]) == (3, releases)
        assert (after["epsilon"] > before["epsilon"]) is (kind == "system")
        assert after["randomness"] == kind


def test_a_run_without_its_ledger_does_not_go_on(small_run):
    run = small_run(*PRIVATE, observer=StopAfterOne())
    (run.path / "privacy.jsonl").unlink()
    with pytest.raises(RunStopped, match="nobody can say what was spent"):
        intarsia.resume(run.path)


def test_a_budget_stops_the_run_before_it_is_passed_with_its_state_saved(small_run):
    budget = epsilon_of({Release(0.5, 0.8): 2}, 8**-1.1) + 1e-6
    changes = (*PRIVATE, f"privacy.budget={budget}", "rounds=5", "evaluation.every=5")
    with (
        pytest.warns(intarsia.IntarsiaWarning, match="enough for 2 of 5 rounds"),
        pytest.raises(
            RunStopped,
            match=r"budget is spent: .*round 3 would go beyond it(.|\n)*state after round 2 is saved",
        ),
    ):
        small_run(*changes)


def test_what_a_spent_budget_leaves(small_run, tmp_path):
    budget = epsilon_of({Release(0.5, 0.8): 2}, 8**-1.1) + 1e-6
    with pytest.warns(intarsia.IntarsiaWarning), pytest.raises(RunStopped):
        small_run(*PRIVATE, f"privacy.budget={budget}", "rounds=5", "evaluation.every=5")
    run = intarsia.open_run(tmp_path / "run")
    told = run.summary["privacy"]
    assert (run.summary["finished"], run.summary["rounds"], told["releases"]) == (False, 2, 2)
    assert told["budget_spent"]
    assert told["epsilon"] <= budget
    assert run.summary["accuracy"]  # the last round that there can be is evaluated
    with pytest.warns(intarsia.IntarsiaWarning), pytest.raises(RunStopped, match="budget is spent"):
        intarsia.resume(run.path)
    assert intarsia.open_run(run.path).summary["privacy"] == told


def test_an_epsilon_sets_the_noise_which_is_written_with_the_run(small_run):
    run = small_run("privacy.clip=0.5", "privacy.epsilon=5", "sampling.kind=poisson", "sampling.fraction=0.5")
    told = run.summary["privacy"]
    assert 4.9 < told["epsilon"] <= 5
    assert run.settings.noise_multiplier == told["noise"]
    again = load(run.path / "settings.toml")
    assert again.noise_multiplier == told["noise"]
    assert load(again, ["rounds=9"]).noise_multiplier == 0  # to be worked out anew
    assert load(again, ["training.lr=0.3"]).noise_multiplier == told["noise"]


def test_a_longer_run_goes_no_further_than_its_epsilon(small_run):
    run = small_run("privacy.clip=0.5", "privacy.epsilon=5", "sampling.kind=poisson", "sampling.fraction=0.5")
    with pytest.warns(intarsia.IntarsiaWarning), pytest.raises(RunStopped, match="budget is spent"):
        intarsia.resume(run.path, rounds=6)
    assert intarsia.open_run(run.path).summary["privacy"]["epsilon"] <= 5


def test_an_adaptive_bound_grows_to_what_clients_do_and_shrinks_from_what_they_do_not(small_run):
    common = (
        "privacy.noise=0.3",
        "privacy.adaptive=true",
        "privacy.rate=1.0",
        "rounds=8",
        "evaluation.every=8",
    )
    low = small_run(*common, "privacy.clip=0.001", out="low").summary["privacy"]["bound"]
    high = small_run(*common, "privacy.clip=50", out="high").summary["privacy"]["bound"]
    assert low > 0.004
    assert high < 5


def test_shared_norms_get_noise_and_no_negative_variance(small_run):
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 10))
    changes = ('population.generations=["8x8"]', "sharing.by=", *PRIVATE, "privacy.clip=2.0", "rounds=2")
    run = small_run(*changes, model=model)
    block = run.state().pool.get(Address("model", "all"))
    variances = [t for n, t in block.tensors.items() if n.endswith("running_var")]
    counts = [t for n, t in block.tensors.items() if n.endswith("num_batches_tracked")]
    assert variances
    assert all(bool((t >= 0).all()) for t in variances)
    assert not any(int(t) for t in counts)
    assert run.summary["loss"]["mean"] < math.inf


@pytest.mark.parametrize("method", sorted(METHODS))
def test_every_method_is_protected_or_refused_by_name(method, small_run, tmp_path):
    changes = (f"method={method}", *NEEDS.get(method, ()), *PRIVATE, "rounds=1", "evaluation.metrics=[]")
    if method in REFUSED:
        with pytest.raises(SettingsError, match=REFUSED[method]):
            small_run(*changes)
        assert not (tmp_path / "run").exists()
        return
    told = small_run(*changes).summary["privacy"]
    assert told["releases"] == 1
    assert all(own["releases"] == 1 for own in told["addresses"].values())


def test_found_cohorts_are_refused_with_what_to_do():
    with pytest.raises(SettingsError, match="let groups be given"):
        intarsia.run("quickstart", changes=["method=modfl", "sharing.cohorts=found", *PRIVATE])


@pytest.mark.parametrize("guard", ["merge=median", "defence.norm=auto", "secure_sums.on=true"])
def test_what_reads_or_hides_single_updates_is_refused_beside_noise(guard):
    with pytest.raises(SettingsError, match="privacy, "):
        intarsia.run("quickstart", changes=[*PRIVATE, guard])


def test_a_method_of_ones_own_that_does_not_say_what_it_gives_away_is_refused(tmp_path):
    @intarsia.part
    class Silent(intarsia.Method):
        """Has a step of its own."""

        name: ClassVar[str] = "silent"
        title: ClassVar[str] = "Silent"

        def local_step(self, step, client):
            return {}

    settings = {"privacy": {"clip": 1.0, "noise": 1.0}}
    with pytest.raises(SettingsError, match=r"Method\.gives_away"):
        intarsia.run(settings, data=two_clients(), model=Known(), method=Silent(), out=tmp_path / "run")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (["privacy.noise=1"], "privacy.clip: say how far"),
        (["privacy.clip=1"], "give either the noise"),
        (["privacy.clip=1", "privacy.noise=1", "privacy.epsilon=2"], "give either the noise"),
        (
            ["privacy.clip=1", "privacy.noise=1", "sampling.fraction=0.5"],
            "4 of 8 clients, exactly, cost an epsilon of",
        ),
        (
            ["privacy.clip=1", "privacy.epsilon=3", "sampling.clients=2"],
            "2 of 8 clients, exactly, cost an epsilon of",
        ),
        (["privacy.clip=1", "privacy.noise=1", "sampling.replacement=true"], "counts once a round"),
        (["privacy.clip=1", "privacy.noise=1", "defence.norm=3"], "privacy, merge, defence"),
        (["privacy.clip=1", "privacy.noise=1", "merge=median"], "privacy, merge, defence"),
        (["privacy.clip=1", "privacy.noise=1", "secure_sums.on=true"], "masks hide these"),
        (["privacy.clip=1", "privacy.noize=1"], "did you mean 'noise'"),
        (["privacy.clip=nan", "privacy.noise=1"], "finite number"),
    ],
)
def test_what_cannot_be_private_is_said_before_anything_is_written(changes, said, small_run, tmp_path):
    with pytest.raises(SettingsError, match=said):
        small_run(*changes)
    assert not (tmp_path / "run").exists()


def test_without_privacy_nothing_of_it_is_written(small_run):
    run = small_run()
    text = (run.path / "settings.toml").read_text()
    assert not any(word in text for word in ("privacy", "noise_multiplier", "kind"))
    assert "privacy" not in run.summary
    assert not (run.path / "privacy.jsonl").exists()


def test_each_client_by_a_chance_of_its_own():
    names = [f"client-{i}" for i in range(1000)]
    rounds = [Sampling(fraction=0.1, kind="poisson").choose(names, 7, round) for round in range(1, 21)]
    counts = [len(chosen) for chosen in rounds]
    assert len(set(counts)) > 5
    assert np.mean(counts) == pytest.approx(100, abs=5 * math.sqrt(90 / 20))
    assert rounds[0] == Sampling(fraction=0.1, kind="poisson").choose(names, 7, 1)
    assert Sampling(clients=50, kind="poisson").chance(1000) == 0.05
    assert len(Sampling(kind="poisson").choose(names, 7, 1)) == 1000


def test_without_privacy_a_round_that_nobody_was_drawn_for_changes_nothing(small_run):
    run = small_run(
        "method=modfl", "sharing.cohorts=found", "sampling.kind=poisson", "sampling.fraction=0.001"
    )
    for address in run.state().pool:
        assert run.state().pool.version(address) == run.setup.initial_pool().version(address)


def test_a_real_federation_takes_noise_from_the_system_and_tells_scores_only_if_asked():
    private = {"privacy": {"clip": 1.0, "noise": 1.0}}
    with pytest.raises(SettingsError, match=r"privacy\.tells_scores"):
        deployed(load(private))
    keyed = load(private, ["privacy.tells_scores=true", "privacy.randomness=keyed"])
    with pytest.raises(SettingsError, match="known to every site"):
        deployed(keyed)
    assert deployed(load(private, ["privacy.tells_scores=true"])).privacy.randomness == "system"
    assert deployed(load({})) == load({})


def test_the_ledger_is_written_before_the_round_is_committed(small_run, monkeypatch):
    """Somebody pulls the plug when next versions are made: the release is noted, though the run has no trace of it."""
    from intarsia.blocks import Fold

    def plug(self):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Fold, "finish", plug)
        with pytest.raises(
            KeyboardInterrupt, match="state after round 0 is saved: intarsia resume "
        ) as stopped:
            small_run(*PRIVATE)
    path = str(stopped.value).rsplit("intarsia resume ")[-1]
    lines = [json.loads(line) for line in Path(path, "privacy.jsonl").read_text().splitlines()]
    assert [line["round"] for line in lines] == [1]
    assert intarsia.resume(path).summary["privacy"]["releases"] == 3
