"""Cohorts that are found: they match those given, keep their names, and go on from their members."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import intarsia
from intarsia.federation import Sampling
from intarsia.methods.modfl.cohorts import cluster, keep_names
from tests.conftest import SMALL
from tests.methods.test_methods import LR, close, mean, network, population, slow_client


def held_cohorts(run: intarsia.Run) -> dict[str, str]:
    return dict(run.state().groups["operation"])


def rand_index(run: intarsia.Run) -> float:
    from sklearn.metrics import adjusted_rand_score

    found = held_cohorts(run)
    given = [run.client(name).info.cohort for name in run.clients]
    return float(adjusted_rand_score(given, [found[name] for name in run.clients]))


@pytest.mark.parametrize("algorithm", ["agglomerative", "kmeans"])
def test_found_cohorts_match_the_given_ones(algorithm, tmp_path):
    """Both generations, five cohorts with labels of their own: the last layer's first update tells them apart."""
    changes = [
        "method=modfl",
        "rounds=2",
        "population.labels=2",
        "sharing.cohorts=found",
        f"sharing.algorithm={algorithm}",
    ]
    given = intarsia.run("quickstart", changes=[*changes, "sharing.number=5"], out=tmp_path / "number")
    assert rand_index(given) == 1
    assert len(given.groups) == 40
    assert {row["before"] for row in given.groups} == {"all"}
    bias = [*changes, "sharing.compare=last_bias"]
    chosen = intarsia.run("quickstart", changes=bias, out=tmp_path / "chosen")
    assert rand_index(chosen) == 1


def one_label_each(data: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Clients with even numbers have label 0 alone, the others label 1."""
    for i, entry in enumerate(data.values()):
        x, y = entry["train"]
        entry["train"] = (x, torch.full_like(y, i % 2))
    return data


FIND = {
    "rounds": 2,
    "method": "modfl",
    "sharing": {"cohorts": "found", "number": 2},
    "training": {"lr": LR, "batch_size": 8, "epochs": 2},
    "engine": {"name": "debug", "device": "cpu"},
}


def test_each_found_cohort_goes_on_from_its_members_mean(tmp_path):
    data = one_label_each(population((6, 12, 18, 24)))
    run = intarsia.run({**FIND, "rounds": 1}, data=data, model=network(), out=tmp_path / "r")
    start = dict(network().state_dict())
    done = {n: slow_client(start, data[n], n, 1)[0] for n in data}
    found = held_cohorts(run)
    assert found["c0"] == found["c2"] != found["c1"] == found["c3"]
    for members, weights in ((("c0", "c2"), (6.0, 18.0)), (("c1", "c3"), (12.0, 24.0))):
        outer = mean([done[m] for m in members], list(weights), ["2.weight", "2.bias"])
        inner = mean(list(done.values()), [6.0, 12.0, 18.0, 24.0], ["0.weight", "0.bias"])
        for member in members:
            close(dict(run.client(member).model().state_dict()), {**inner, **outer})
    addresses = {str(a) for a in run.state().pool}
    assert addresses == {"configuration@default", "operation@cohort-0", "operation@cohort-1"}


@pytest.mark.parametrize(
    "changes",
    [
        ["sampling.replacement=true"],
        ["merge=nova", "training.epochs=2"],
        ["merge=relaxed", "merge.beta=0.4"],
        ["sampling.replacement=true", "merge=nova"],
    ],
)
def test_one_found_cohort_is_merged_as_one_given_cohort(changes, tmp_path):
    """Doubles count twice, and the merge is the method's own: bit for bit, in the round in which it is found."""
    data, seed = population((6, 12, 18)), 0
    if "sampling.replacement=true" in changes:  # in round 2 of seed 0 everyone was seen: c1 once and c2 twice
        assert Sampling(replacement=True).choose(list(data), seed, 2) == {"c1": 1, "c2": 2}
    modules = []
    for sharing in ({"cohorts": "found", "number": 1, "after": 2}, {"cohorts": "given"}):
        out = tmp_path / sharing["cohorts"]
        settings = {**FIND, "sharing": sharing, "seed": seed}
        run = intarsia.run(settings, data=data, model=network(), changes=changes, out=out)
        pool = run.state().pool
        (module,) = (pool.get(address) for address in pool if address.block == "operation")
        modules.append(module)
        assert len(run.groups) == (3 if sharing["cohorts"] == "found" else 0)
    assert modules[0].version == modules[1].version


def test_cohorts_are_found_among_those_who_train_and_newcomers_join_the_largest(tmp_path):
    data = one_label_each(population((6, 12, 18, 24, 30, 9)))
    run = intarsia.run({**FIND, "sampling": {"newcomers": 1}}, data=data, model=network(), out=tmp_path / "r")
    found = held_cohorts(run)
    assert found["c0"] == found["c2"] == found["c4"] == found["c5"]
    assert found["c1"] == found["c3"] != found["c0"]
    addresses = {str(a) for a in run.state().pool}
    assert addresses == {"configuration@default", "operation@cohort-0", "operation@cohort-1"}
    close(*(dict(run.client(name).model().state_dict()) for name in ("c5", "c0")))
    assert {row["stage"] for row in run.metrics if row["client"] == "c5"} == {"new", "tuned"}


def test_a_newcomer_with_a_task_that_nobody_trains_keeps_the_first_module(tmp_path):
    data = one_label_each(population((6, 12, 18, 24, 30)))
    for name, entry in data.items():
        entry["task"] = "other" if name == "c4" else "usual"
    run = intarsia.run({**FIND, "sampling": {"newcomers": 1}}, data=data, model=network(), out=tmp_path / "r")
    assert held_cohorts(run).keys() == {"c0", "c1", "c2", "c3"}
    assert torch.equal(run.client("c4").model().state_dict()["2.weight"], network().state_dict()["2.weight"])


def test_finding_waits_until_every_client_took_part_and_survives_resume(tmp_path):
    changes = [
        "method=modfl",
        "rounds=8",
        "population.labels=2",
        "sharing.cohorts=found",
        "sharing.number=5",
        "sampling.fraction=0.4",
        "engine.name=debug",
    ]
    whole = intarsia.run("quickstart", changes=changes, out=tmp_path / "whole")
    moved = {row["round"] for row in whole.groups}
    seen = {}
    for row in whole.metrics:
        if row["split"] == "train":
            seen.setdefault(row["client"], row["round"])
    assert moved == {max(seen.values())}
    assert rand_index(whole) >= 0.9

    class Stop(intarsia.Observer):
        def exchange_started(self, round: int, name: str, clients: int) -> None:
            if round == min(moved):
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        intarsia.run("quickstart", changes=changes, out=tmp_path / "cut", observer=Stop())
    resumed = intarsia.resume(tmp_path / "cut", engine={"name": "local", "workers": 2})
    assert resumed.metrics == whole.metrics
    assert resumed.groups == whole.groups


def test_found_cohorts_are_found_again_until_nothing_changes(tmp_path):
    changes = [
        "method=modfl",
        "rounds=6",
        "population.labels=2",
        "sharing.cohorts=found",
        "sharing.number=5",
        "sharing.every=1",
        "engine.name=debug",
    ]
    run = intarsia.run("quickstart", changes=changes, out=tmp_path / "r")
    state = run.state()
    assert state.server["cohorts settled"]
    assert rand_index(run) >= 0.9


def test_cohorts_may_be_found_in_each_round_as_in_algorithm_1(tmp_path):
    """Every round ends with a search, whatever the last one found."""
    changes = ["method=modfl", "sharing.cohorts=found", "sharing.number=2", "sharing.every=1", "rounds=4"]
    run = intarsia.run(SMALL, changes=[*changes, "sharing.settle=false"], out=tmp_path / "r")
    assert (run.state().server["cohorts found"], run.state().server["cohorts settled"]) == (4, False)
    settled = intarsia.run(SMALL, changes=changes, out=tmp_path / "s").state().server
    assert settled["cohorts settled"]
    assert settled["cohorts found"] < 4


def test_a_found_cohorts_module_owes_nothing_of_the_one_it_replaces(tmp_path):
    changes = [
        "method=modfl",
        "rounds=5",
        "population.labels=2",
        "sharing.cohorts=found",
        "sharing.number=5",
        "sharing.after=2",
        "sharing.every=1",
        "codec.name=topk",
        "codec.down=true",
        "checkpoints.keep=9",
        "engine.name=debug",
    ]
    run = intarsia.run("quickstart", changes=changes, out=tmp_path / "r")
    coded = []
    for number in range(1, 6):
        state = run.state(number)
        assert all(code.version == state.pool.version(address) for address, code in state.codes.items())
        coded.append(any(address.block == "operation" for address in state.codes))
    assert coded == [True, False, False, True, True]  # found in round 2, found again and settled in round 3
    assert state.server["cohorts settled"]


def test_groups_keep_the_name_they_overlap_most():
    before = {"a": "x", "b": "x", "c": "x", "d": "y"}
    clusters = {"a": 0, "b": 1, "c": 1, "d": 2, "e": 0}
    assert keep_names(before, clusters, ["new-0", "x", "new-1"]) == {
        "a": "new-0",
        "b": "x",
        "c": "x",
        "d": "y",
        "e": "new-0",
    }


def test_a_sharing_that_finds_cohorts_combines_with_any_method(tmp_path):
    changes = ["method=fednova", "sharing=modfl", "sharing.cohorts=found", "sharing.number=2", "rounds=3"]
    run = intarsia.run(SMALL, changes=changes, out=tmp_path / "r")
    assert run.summary["finished"]
    assert len(set(held_cohorts(run).values())) == 2


@pytest.mark.parametrize("algorithm", ["agglomerative", "kmeans"])
@pytest.mark.parametrize("number", [0, 2])
def test_updates_of_nothing_do_not_stop_the_search_for_cohorts(algorithm, number):
    rows = np.array([[1.0, 0.0], [1.0, 0.1], [-1.0, 0.0], [-1.0, 0.1], [0.0, 0.0], [0.0, 0.0]])
    found = cluster(rows, number, algorithm, 0)
    assert found[0] == found[1] != found[2] == found[3]
    assert found[4] == found[5]
