"""Clients that are made when they are needed: what is held, what is checked, and that results are those of held data."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

import intarsia
from intarsia.core import DataError
from intarsia.data import Synthetic
from intarsia.data.population import SEEN, who_holds_what

NAMES = [f"truck-{i}" for i in range(40)]
COUNTS = [10 + i % 12 for i in range(40)]

SETTINGS = {
    "rounds": 1,
    "method": "fedper",
    "model": {"name": "mlp", "hidden": [8]},
    "evaluation": {"metrics": []},
    "engine": {"name": "debug", "device": "cpu"},
}


def made(name: str) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Make a client's data from its name."""
    number = int(name.removeprefix("truck-"))
    random = np.random.default_rng(number)
    rows = {"train": COUNTS[number], "test": 6}
    return {split: (random.standard_normal((n, 5)), random.integers(0, 3, n)) for split, n in rows.items()}


def trucks(load=made, **more):
    """Return the population of these clients."""
    said = {"samples": {"train": COUNTS, "test": 6}, "classes": 3, "cohort": ["north", "south"] * 20}
    return intarsia.from_function(load, NAMES, **(said | more))


def test_a_client_is_made_when_it_is_asked_for_and_known_without_it():
    asked = []
    population = trucks(lambda name: asked.append(name) or made(name))
    asked.clear()
    info = population.clients["truck-3"].info
    assert (info.shape, dict(info.samples), info.cohort) == ((5,), {"train": 13, "test": 6}, "south")
    assert [i.name for i in population.infos] == NAMES == list(population.known)
    assert [i.name for i in population.kinds] == ["truck-0", "truck-1"]
    assert population.infos[2:4][1].name == "truck-3"
    client = population.clients["truck-3"]
    assert "train" in client.data
    assert "validation" not in client.data
    assert not asked
    assert client.data["train"].x.shape == (13, 5)
    assert client.data["test"].y.shape == (6,)
    assert asked == ["truck-3"]
    with pytest.raises(KeyError):
        population.known["nobody"]
    with pytest.raises(KeyError):
        client.data["validation"]


def test_results_are_those_of_held_data(tmp_path):
    """What a run computes does not depend on when the data is made, nor on which process makes it."""
    held = {name: {**made(name), "cohort": "south" if i % 2 else "north"} for i, name in enumerate(NAMES)}
    settings = {
        "rounds": 2,
        "method": "fedper",
        "model": {"name": "mlp", "hidden": [8]},
        "sampling": {"clients": 4},
    }
    runs = [
        intarsia.run({**settings, "engine": {"name": engine, "workers": 2}}, data=data, out=tmp_path / name)
        for name, engine, data in (
            ("held", "debug", held),
            ("made", "debug", trucks()),
            ("workers", "local", trucks()),
        )
    ]
    first, *others = ([run.metrics, run.judged, run.traffic] for run in runs)
    assert all(other == first for other in others)


def test_a_run_is_opened_and_gone_on_with_when_the_data_is_given_again(tmp_path):
    whole = intarsia.run({**SETTINGS, "rounds": 2}, data=trucks(), out=tmp_path / "whole")
    intarsia.run(SETTINGS, data=trucks(), out=tmp_path / "part")
    again = intarsia.resume(tmp_path / "part", data=trucks(), rounds=2)
    assert again.metrics == whole.metrics
    opened = intarsia.open_run(tmp_path / "whole", data=trucks())
    assert opened.client("truck-7").model() is not None
    with pytest.raises(DataError, match="the split is"):
        intarsia.resume(
            tmp_path / "part", data=trucks(samples={"train": COUNTS, "test": 6}, cohort="north"), rounds=3
        )


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"samples": {"train": 3}}, "of `train` and of `test`"),
        ({"samples": {"train": [1, 2], "test": 6}}, "one for each of 40 clients"),
        ({"classes": None}, "how many labels"),
        ({"classes": 2}, "labels from 0 to 2"),
        ({"samples": {"train": 3, "test": 6}}, "was said to have"),
        ({"colour": "red"}, "no attribute 'colour'"),
        ({"cohort": ["north"]}, "one value, or a list"),
        ({"capacity": 0}, "capacity"),
    ],
)
def test_what_is_wrong_is_said(change, said):
    with pytest.raises(DataError, match=said):
        trucks(**change)


def test_names_are_each_there_once():
    with pytest.raises(DataError, match="two clients are called 'a'"):
        intarsia.from_function(made, ["b", "a", "a"], {"train": 1, "test": 1}, classes=2)


def test_a_client_that_is_not_what_was_said_fails_by_name(tmp_path):
    """Some clients are looked at before a run; another one is left out when its turn comes, and named."""

    def wrong(name):
        return {**made(name), "test": made("truck-0")["train"]} if name == "truck-6" else made(name)

    run = intarsia.run({**SETTINGS, "evaluation": {"clients": 1}}, data=trucks(wrong), out=tmp_path / "run")
    assert {event["client"] for event in run.events if event["kind"] == "failed"} == {"truck-6"}
    assert "was said to have" in run.events[0]["message"]


def test_synthetic_clients_are_a_function_of_seed_and_number():
    few, many = (Synthetic(clients=clients, samples=20, validation=0.2) for clients in (30, 300))
    one, again, other = few.load(1), few.load(1), few.load(2)
    assert one.split_hash == again.split_hash != other.split_hash
    x = one.clients["client-07"].data["train"].x
    assert x.equal(again.clients["client-07"].data["train"].x)
    assert not x.equal(other.clients["client-07"].data["train"].x[: len(x)])
    assert set(one.clients["client-07"].data) == {"train", "validation", "test"}
    assert len(many.load(1)) == 300
    assert len(one.kinds) == 5
    copied = pickle.loads(pickle.dumps(one))  # noqa: S301 - as processes that are not forked get it
    assert copied.clients["client-07"].data["train"].x.equal(x)


def test_alike_clients_have_the_same_rule_and_unlike_ones_not():
    """With alpha 0 a linear model of one client is right about all others; with a large one it is not."""

    def agreement(alpha):
        clients = (
            Synthetic(clients=4, samples=400, features=6, classes=3, alpha=alpha, beta=0.0, cohorts=1)
            .load(0)
            .clients
        )
        first, other = (clients[f"client-0{i}"].data["train"] for i in (0, 3))
        ones = np.eye(3)[first.y.numpy()]
        rule = np.linalg.lstsq(np.c_[first.x.numpy(), np.ones(len(first))], ones, rcond=None)[0]
        said = (np.c_[other.x.numpy(), np.ones(len(other))] @ rule).argmax(1)
        return (said == other.y.numpy()).mean()

    assert agreement(0.0) > 0.75 > agreement(3.0)


def test_records_tell_of_some_clients_and_of_the_sizes_of_all():
    population = Synthetic(clients=1000, samples=20).load(0)
    about = who_holds_what(population, ["client-004", "client-800"])
    assert list(about["clients"]) == ["client-004", "client-800"]
    assert about["everyone"]["clients"] == 1000
    sizes = about["everyone"]["samples"]
    assert 10 <= sizes["0"] <= sizes["50"] <= sizes["100"] <= 30
    assert len(who_holds_what(population)["clients"]) == 100
    assert len(population.some(SEEN)) == SEEN
    assert {*population.some(2)} == {"client-000", "client-999"}


def other_each_time(random=np.random.default_rng(0)):  # noqa: B008
    """Return a function that makes other data whenever it is called."""
    return lambda name: {split: (random.normal(size=x.shape), y) for split, (x, y) in made(name).items()}


@pytest.mark.parametrize(
    ("load", "message"),
    [
        (5, "load: give a function"),
        (lambda name: {}[name], "client 'truck-0' failed: KeyError: 'truck-0'"),
        (lambda name: None, r"client 'truck-0' gave None: let it return \{\"train\""),
        (lambda name: {"train": [1, 2, 3], "test": 5}, "train data of client 'truck-0' must be a pair"),
        (other_each_time(), "other data for client 'truck-0' when it was called again"),
    ],
)
def test_functions_that_are_none_or_fail_are_refused_with_the_client(load, message):
    with pytest.raises(DataError, match=message):
        trucks(load)


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"samples": None}, "samples: say how many"),
        ({"samples": {"train": 0, "test": 6}}, "client 1 of 40 has no train data"),
        ({"classes": 0}, "classes: give a whole number above 0"),
        ({"classes": 2.5}, "classes: give a whole number above 0"),
        ({"classes": "3"}, "classes: give a whole number above 0"),
        ({"problem": "guess"}, "problem: write classification or regression"),
        ({"problem": "regression"}, "classes: a regression has none"),
        ({"cohort": [["north"]] * 40}, "cohort: client 'truck-0' has"),
        ({"cohort": {"a": 1}}, "cohort: client 'truck-0' has"),
    ],
)
def test_what_cannot_be_said_of_clients_is_refused(said, message):
    with pytest.raises(DataError, match=message):
        trucks(**said)


@pytest.mark.parametrize("names", [None, 5, "abc", ["a", ""], ["a", "\ud800"]])
def test_names_that_are_none_are_refused(names):
    with pytest.raises(DataError, match="names: "):
        intarsia.from_function(lambda name: made("truck-0"), names, {"train": 10, "test": 6}, classes=3)


def test_a_split_may_be_a_dataset_and_an_attribute_left_out():
    def pairs(name):
        return {split: list(zip(x, y, strict=True)) for split, (x, y) in made(name).items()}

    told, plain = trucks(pairs, device=None), trucks()
    assert told.split_hash == plain.split_hash
