"""Methods that are hardly meant for the clients at hand say so, and go on."""

from __future__ import annotations

import warnings

import pytest
import torch

import intarsia
from intarsia import IntarsiaWarning
from intarsia.core import warn, warnings_told

QUICK = {"rounds": 1, "training": {"lr": 0.1, "batch_size": 4}, "engine": {"name": "debug", "device": "cpu"}}


def clients(count=4, **attributes):
    """Clients alike but for attributes: each a word for all, or a list with one a client."""
    source = torch.Generator().manual_seed(0)
    own = [{k: v if isinstance(v, str) else v[i] for k, v in attributes.items()} for i in range(count)]
    x, y = torch.randn(count, 9, 3, generator=source), torch.arange(9) % 3
    return {f"c{i}": {"train": (x[i, :6], y[:6]), "test": (x[i, 6:], y[6:]), **own[i]} for i in range(count)}


def doubts(settings, data) -> list[str]:
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        intarsia.preview({**QUICK, **settings}, data=data)
    return [str(w.message) for w in seen if issubclass(w.category, IntarsiaWarning)]


@pytest.mark.parametrize(
    ("settings", "attributes"),
    [
        ({"method": "modfl"}, {}),
        ({"method": "modfl"}, {"device": "gen1", "cohort": "north"}),
        ({"method": "modfl", "sharing": {"cohorts": "found", "number": 1}}, {}),
        ({"method": "fedprox", "sharing": "modfl"}, {}),
    ],
)
def test_modfl_in_one_cohort_of_one_device_says_that_it_is_fedavg(settings, attributes):
    (said,) = doubts(settings, clients(**attributes))
    assert "all clients are in one cohort" in said
    assert "as in FedAvg" in said
    assert 'sharing.cohorts = "found"' in said


def test_modfl_without_cohorts_says_that_the_operation_module_is_everyones():
    (said,) = doubts({"method": "modfl"}, clients(device=["a", "a", "b", "b"]))
    assert "the operation module is everyone's" in said
    assert "FedAvg" not in said


@pytest.mark.parametrize(
    ("settings", "attributes"),
    [
        ({"method": "modfl"}, {"cohort": ["n", "n", "s", "s"]}),
        ({"method": "modfl"}, {"device": ["a", "a", "b", "b"], "cohort": "north"}),
        ({"method": "modfl", "sharing": {"cohorts": "found"}}, {}),
        ({"method": "fedavg"}, {}),
        ({"sharing": {"by": "device"}}, {"device": ["a", "a", "b", "b"]}),
    ],
)
def test_there_is_no_doubt_where_something_is_divided(settings, attributes):
    assert doubts(settings, clients(**attributes)) == []


def test_one_client_alone_is_told_that_it_is_alone_and_no_more():
    (said,) = doubts({"method": "modfl", "sharing": {}}, clients(1))
    assert "there is one client, so that nothing is federated" in said


def test_a_division_that_divides_nobody_says_so():
    (said,) = doubts({"sharing": {"by": "cohort"}}, clients())
    assert said == "sharing.by: all clients have the same cohort, 'default', so that it divides nobody"


def test_heterofl_with_whole_networks_says_so():
    (said,) = doubts({"method": "heterofl"}, clients())
    assert "every client holds the whole network" in said
    assert doubts({"method": "heterofl", "model": {"name": "mlp", "hidden": [8]}}, narrow()) == []


def narrow():
    return {name: {**about, "capacity": 0.5 if name == "c0" else 1.0} for name, about in clients().items()}


def test_one_found_cohort_is_told(tmp_path):
    """Two clients cannot be told apart by the silhouette: they are one cohort."""
    settings = {**QUICK, "method": "modfl", "sharing": {"cohorts": "found"}}
    with pytest.warns(IntarsiaWarning, match="round 1: one cohort was found"):
        intarsia.run(settings, data=clients(2), out=tmp_path / "r")


def test_our_warnings_are_told_and_others_shown_as_usual():
    told: list[str] = []
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        with warnings_told(told.append):
            warn("mind the cohort")
            warnings.warn("something else", stacklevel=1)
    assert told == ["mind the cohort"]
    assert [str(w.message) for w in seen] == ["something else"]
