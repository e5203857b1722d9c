"""Clustered FL: the bipartition against all bipartitions, splits against a slow implementation."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import intarsia
from intarsia.blocks import Address, Block, Pool, Update
from intarsia.data import ClientInfo
from intarsia.methods import Addresses, ClientModel, Sent, Server, SharedBlocks
from intarsia.methods.clustered_fl import Clusters, bipartition, inner_products
from tests.conftest import SMALL
from tests.methods import slow


def across(similarity: np.ndarray, halves: list[int]) -> float:
    pairs = itertools.combinations(range(len(halves)), 2)
    return max(similarity[i, j] for i, j in pairs if halves[i] != halves[j])


def best_of_all(similarity: np.ndarray) -> tuple[list[int], float]:
    """Try every bipartition; the first row is in half 0."""
    every = itertools.product((0, 1), repeat=len(similarity) - 1)
    halves = [[0, *rest] for rest in every if any(rest)]
    best = min(halves, key=lambda h: across(similarity, h))
    return best, across(similarity, best)


def test_a_bipartition_by_hand():
    # Joined: 0-1 (.9), 2-3 (.8), then 1-2 (.5) is the largest across what is left.
    similarity = np.array([[1, 0.9, 0.1, -0.3], [0.9, 1, 0.5, 0.2], [0.1, 0.5, 1, 0.8], [-0.3, 0.2, 0.8, 1]])
    assert bipartition(similarity) == ([0, 0, 1, 1], 0.5)
    assert bipartition(np.array([[1, -0.5], [-0.5, 1]])) == ([0, 1], -0.5)


@settings(max_examples=80, deadline=None)
@given(size=st.integers(2, 7), seed=st.integers(0, 10**6), coarse=st.booleans())
def test_no_bipartition_is_better(size, seed, coarse):
    drawn = np.random.default_rng(seed).uniform(-1, 1, (size, size))
    similarity = (drawn + drawn.T) / 2
    if coarse:  # with ties
        similarity = np.round(similarity * 2) / 2
    halves, largest = bipartition(similarity)
    assert set(halves) == {0, 1}
    assert largest == across(similarity, halves) == best_of_all(similarity)[1]


def joined_pair_by_pair(similarity: np.ndarray) -> tuple[list[int], float]:
    """Single linkage by its definition: join the clusters of the most similar pair until two are left."""
    cluster = list(range(len(similarity)))
    pairs = itertools.combinations(cluster, 2)
    for i, j in sorted(pairs, key=lambda pair: -similarity[pair]):
        if cluster[i] != cluster[j]:
            if len(set(cluster)) == 2:
                return [int(c != cluster[0]) for c in cluster], float(similarity[i, j])
            cluster = [cluster[i] if c == cluster[j] else c for c in cluster]
    raise AssertionError("there are at least two rows")


@settings(max_examples=200, deadline=None, derandomize=True)
@given(size=st.integers(2, 30), seed=st.integers(0, 10**6), features=st.sampled_from([0, 2, 40]))
def test_the_halves_are_those_of_joining_pair_by_pair(size, seed, features):
    """Of any similarities without ties, and of cosines, whose last bits need not be symmetric."""
    draw = np.random.default_rng(seed)
    similarity = draw.uniform(-1, 1, (size, size))
    if features:
        rows = draw.normal(size=(size, features))
        similarity = rows @ rows.T / np.outer(*[np.linalg.norm(rows, axis=1)] * 2)
    assert bipartition(similarity) == joined_pair_by_pair(similarity)


def test_inner_products_are_of_the_parameters_changes_alone():
    def block(w: list[float], mean: float) -> Block:
        return Block({"w": torch.tensor(w), "mean": torch.tensor([mean])}, frozenset({"mean"}))

    # Changes (1, 2) and (3, -1): 5, 1, 10; the buffers have no part.
    products = inner_products(block([1, 1], 0), [block([2, 3], 50), block([4, 0], -50)])
    assert products.tolist() == [[5, 1], [1, 10]]
    with pytest.raises(intarsia.IntarsiaError, match="slices"):
        inner_products(block([1, 1], 0), [block([1], 0)])


def two_kinds() -> dict[str, dict[str, object]]:
    """c0, c2 and c4 name the largest input, c1 and c3 the one after it."""
    data = slow.population((6, 8, 10, 12, 7))
    for i, entry in enumerate(data.values()):
        for split in ("train", "test"):
            x, _ = entry[split]
            entry[split] = (x, (x.argmax(1) + i % 2) % 3)
    return data


def slow_clusters(data, eps1, eps2, gamma_max, rounds):
    """Play rounds as the paper says; return each client's model and all splits."""
    n = slow.samples(data)
    cluster = dict.fromkeys(data, 0)
    models, splits = {0: slow.start()}, []
    for round in range(1, rounds + 1):
        updates = {}
        for name, entry in data.items():
            w, (x, y) = models[cluster[name]], slow.arrays(entry)
            for rows in slow.batches(len(y), name, round):
                w = slow.plus(w, slow.gradient(w, x[rows], y[rows]), -slow.LR)
            updates[name] = slow.plus(w, models[cluster[name]], -1)
        for number in list(models):
            members = [c for c in data if cluster[c] == number]
            average = slow.mean({c: updates[c] for c in members}, n)
            models[number] = slow.plus(models[number], average, 1)
            flat = {c: np.concatenate([v.ravel() for v in updates[c].values()]) for c in members}
            still = np.linalg.norm(np.concatenate([v.ravel() for v in average.values()])) < eps1
            moving = max(np.linalg.norm(v) for v in flat.values()) > eps2
            if len(members) < 2 or not (still and moving):
                continue
            unit = np.array([v / np.linalg.norm(v) for v in flat.values()])
            halves, largest = best_of_all(unit @ unit.T)
            if gamma_max < math.sqrt((1 - largest) / 2):
                new = len(models)
                keeps = 0 if halves.count(0) >= halves.count(1) else 1
                for client, half in zip(members, halves, strict=True):
                    cluster[client] = number if half == keeps else new
                models[new] = models[number]
                splits.append((round, {c for c in members if cluster[c] == new}))
    return {name: models[cluster[name]] for name in data}, splits


@pytest.mark.parametrize(("eps1", "eps2", "gamma_max"), [(0.3, 0.4, 0.38), (0.3, 0.4, 0.7), (1.0, 0.2, 0.38)])
def test_clusters_against_a_slow_implementation(eps1, eps2, gamma_max, tmp_path):
    data = two_kinds()
    models, splits = slow_clusters(data, eps1, eps2, gamma_max, 6)
    changes = [f"sharing.eps1={eps1}", f"sharing.eps2={eps2}", f"sharing.gamma_max={gamma_max}"]
    run = slow.run(tmp_path / "r", "clustered_fl", data, *changes, rounds=6)
    assert splits
    assert splits[0][1] in ({"c1", "c3"}, {"c0", "c2", "c4"})
    moved: dict[tuple[int, str], set[str]] = {}
    for row in run.groups:
        moved.setdefault((row["round"], row["group"]), set()).add(row["client"])
    assert [(round, members) for (round, _), members in moved.items()] == splits
    for name, model in models.items():
        slow.close(slow.own(run, name), model)


def judged(changes: dict[str, list[float]], weights: tuple[int, ...] = (1, 1), **settings: float) -> bool:
    """Say whether clients that changed a zero block like this are split in a round."""
    here, start = Address("model", "all"), Block({"w": torch.zeros(2)})
    sent = Sent(Pool({here: start}), dict(zip(changes, weights, strict=True)))
    server = Server(
        round=1,
        rounds=1,
        seed=0,
        clients={name: ClientInfo(name, (2,), {"train": 1}) for name in changes},
        residents=list(changes),
        pool=SharedBlocks(Pool({here: start}), sent=sent),
        state={},
        addresses=Addresses({name: {"model": here} for name in changes}),
        model_of=lambda client: ClientModel(slow.linear(), ("model",), None),
    )
    replies = {
        name: Update("r", 1, "train", "train", name, "", {here: Block({"w": torch.tensor(w)})}, {}, samples=1)
        for name, w in changes.items()
    }
    Clusters(**{"eps1": 10, "eps2": 0.01, **settings}).regroup(server, replies)
    return bool(server.addresses.found)


def test_a_split_needs_a_cosine_that_noise_cannot_explain():
    # Cosine 0.6: noise of one distribution explains it from sqrt((1 - 0.6) / 2) = 0.4472 on.
    alike = {"a": [2.0, 0.0], "b": [3.0, 4.0]}
    assert judged(alike, gamma_max=0)
    assert judged(alike, gamma_max=0.447)
    assert not judged(alike, gamma_max=0.448)
    assert judged({"a": [1.0, 0.0], "b": [-1.0, 0.0]}, gamma_max=0.999)
    assert not judged({"a": [1.0, 0.0], "b": [2.0, 0.0]}, gamma_max=0)
    # The default, 0.38, asks for less than 1 - 2 * 0.38^2 = 0.7112.
    assert judged({"a": [1.0, 0.0], "b": [0.71, math.sqrt(1 - 0.71**2)]})
    assert not judged({"a": [1.0, 0.0], "b": [0.713, math.sqrt(1 - 0.713**2)]})


def test_a_cluster_stands_still_by_its_merge_weights():
    # The mean of 3 and -1 is 1 with equal weights and 0 with weights 1 and 3, as when one client is drawn three times.
    apart = {"a": [3.0, 0.0], "b": [-1.0, 0.0]}
    assert not judged(apart, (1, 1), eps1=0.5)
    assert judged(apart, (1, 3), eps1=0.5)


def test_the_larger_half_keeps_the_name_and_both_inherit_the_block(tmp_path):
    data = two_kinds()
    thresholds = ["sharing.eps1=10", "sharing.eps2=0.01"]
    run = slow.run(tmp_path / "r", "clustered_fl", data, *thresholds, rounds=1)
    groups = run.state().groups["model"]
    assert groups == {"c0": "all", "c1": "all/2", "c2": "all", "c3": "all/2", "c4": "all"}
    slow.close(slow.shared(run, "model@all/2"), slow.shared(run, "model@all"), 0, 0)
    plain = slow.run(tmp_path / "f", "fedavg", data, rounds=1)
    slow.close(slow.shared(run), slow.shared(plain), 0, 0)


def test_a_cluster_is_judged_only_when_all_of_its_members_answered(tmp_path):
    data = two_kinds()
    always = ["sharing.eps1=10", "sharing.eps2=0.01"]
    sampled = slow.run(
        tmp_path / "s", "clustered_fl", data, *always, "sampling.clients=4", "sharing.after=1", rounds=4
    )
    assert sampled.groups == []
    late = slow.run(tmp_path / "l", "clustered_fl", data, *always, "sharing.after=3", rounds=3)
    assert {row["round"] for row in late.groups} == {3}


def test_clusters_split_without_newcomers_who_stay_where_they_began(tmp_path):
    data = two_kinds()
    thresholds = ["sharing.eps1=10", "sharing.eps2=0.01", "sampling.newcomers=1"]
    run = slow.run(tmp_path / "r", "clustered_fl", data, *thresholds, rounds=1)
    # c4 never trains: two and two are left, and the first half keeps the name.
    assert run.state().groups["model"] == {"c0": "all", "c1": "all/2", "c2": "all", "c3": "all/2"}
    slow.close(slow.own(run, "c4"), slow.own(run, "c0"), 0, 0)
    assert {row["stage"] for row in run.metrics if row["client"] == "c4"} == {"new", "tuned"}


def test_it_finds_the_cohorts_of_the_digits_and_learns(tmp_path):
    changes = [
        "method=clustered_fl",
        'population.generations=["8x8"]',
        "population.labels=2",
        "rounds=10",
        "sharing.eps1=0.6",
        "sharing.eps2=0.6",
        "training.epochs=3",
    ]
    run = intarsia.run(SMALL, changes=changes, out=tmp_path / "r")
    found = run.state().groups["model"]
    by_group: dict[str, set[str]] = {}
    for name, group in found.items():
        by_group.setdefault(group, set()).add(run.client(name).info.cohort)
    assert len(by_group) >= 2
    assert all(len(cohorts) == 1 for cohorts in by_group.values())
    assert run.summary["accuracy"]["mean"] > 0.8


def test_a_stopped_run_goes_on_to_the_same_splits(tmp_path):
    changes = ["sharing.eps1=0.3", "sharing.eps2=0.4"]
    whole = slow.run(tmp_path / "whole", "clustered_fl", two_kinds(), *changes, rounds=6)
    (split, *_) = {row["round"] for row in whole.groups}
    with pytest.raises(KeyboardInterrupt):
        slow.run(
            tmp_path / "cut", "clustered_fl", two_kinds(), *changes, rounds=6, observer=slow.Stop(split + 1)
        )
    resumed = intarsia.resume(tmp_path / "cut", data=two_kinds(), model=slow.linear())
    assert resumed.metrics == whole.metrics
    assert resumed.groups == whole.groups


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("sharing.eps1=0", "sharing.eps1: input should be greater than 0"),
        ("sharing.gamma_max=1.5", "sharing.gamma_max: input should be less than or equal to 1"),
        ("sharing.eps=1", "sharing.eps: unknown setting; did you mean 'eps[12]'"),
        ('cut={a="weight",b="bias"}', r"needs blocks \['model'\]"),
    ],
)
def test_bad_settings(change, message, tmp_path):
    with pytest.raises(intarsia.IntarsiaError, match=message):
        slow.run(tmp_path / "r", "clustered_fl", two_kinds(), change)
