"""Public data: found, apart from all clients' data, and the same after it has travelled."""

from __future__ import annotations

import dataclasses

import pytest
import torch

import intarsia
from intarsia.core import DataError
from intarsia.data import from_dict
from intarsia.data.population import Examples, Scaling
from intarsia.data.public import digests, from_tensors, to_block
from intarsia.experiment import Experiment, load
from tests.conftest import SMALL
from tests.methods.slow import Stop


def test_it_travels_as_a_block():
    x = torch.randint(0, 256, (4, 3, 2, 2), dtype=torch.uint8)
    for scaling in (None, Scaling(1 / 255, (0.1, 0.2, 0.3), (1.0, 2.0, 0.7))):
        public = Examples(x, torch.arange(4), scaling)
        again = from_tensors(to_block(public).tensors)
        assert torch.equal(again.x, x)
        assert torch.equal(again.y, torch.arange(4))
        assert again.scaling == scaling


def test_a_sample_cannot_be_public_and_a_clients(tmp_path):
    with pytest.raises(DataError, match="of its samples are client 'client-00''s too"):
        Experiment.build(load(SMALL, ["public={name='digits', clients=2}"]))


def test_bytes_and_the_same_numbers_are_one_sample():
    x = torch.randint(0, 256, (3, 1, 2, 2), dtype=torch.uint8)
    both = [digests(Examples(rows, torch.arange(3))) for rows in (x, x.float())]
    assert both[0] == both[1]
    assert len(set(both[0])) == 3


def test_a_split_is_known_by_its_public_data_models_and_capacities_too():
    x, y = torch.rand(6, 3), torch.tensor([0, 1, 2, 0, 1, 2])

    def split(seed=0, **more):
        public = Examples(torch.rand(4, 3, generator=torch.Generator().manual_seed(seed)), torch.arange(4))
        return dataclasses.replace(from_dict({"a": {"train": (x, y), "test": (x, y), **more}}), public=public)

    assert split().split_hash == split().split_hash
    others = [split(1), split(model="small"), split(model="large"), split(capacity=2.0)]
    assert len({one.split_hash for one in (split(), *others)}) == 5


def test_a_split_is_known_by_what_the_user_says_of_clients():
    x, y = torch.arange(18.0).reshape(6, 3), torch.tensor([0, 1, 2, 0, 1, 2])

    def split(**more):
        return from_dict({"a": {"train": (x, y), "test": (x, y), **more}}).split_hash

    assert split() == split(device="default", cohort="default", task="") == "5a30f6acaf4a251d"
    said = [{key: value} for key in ("device", "cohort", "task") for value in ("north", "south")]
    assert len({split(), *(split(**one) for one in said)}) == 7
    assert split(device="north", cohort="south") == split(cohort="south", device="north")
    assert split(device="north", cohort="south") != split(device="south", cohort="north")


@pytest.mark.parametrize("attribute", ["device", "cohort"])
def test_a_run_does_not_go_on_with_clients_of_another_group(attribute, tmp_path):
    x, y = torch.rand(6, 3), torch.tensor([0, 1, 2, 0, 1, 2])

    def data(group):
        return {n: {"train": (x, y), "test": (x, y), attribute: g} for n, g in (("a", "one"), ("b", group))}

    settings = {"rounds": 2, "model": {"name": "mlp", "hidden": [4]}, "engine": {"name": "debug"}}
    with pytest.raises(KeyboardInterrupt):
        intarsia.run(settings, data=data("one"), out=tmp_path / "run", observer=Stop(2))
    with pytest.raises(DataError, match="the data is not the same"):
        intarsia.resume(tmp_path / "run", data=data("two"))
    assert intarsia.resume(tmp_path / "run", data=data("one")).summary["finished"]


def test_a_run_does_not_go_on_with_other_public_data(tmp_path):
    x, y = torch.rand(6, 3), torch.tensor([0, 1, 2, 0, 1, 2])
    data = from_dict({n: {"train": (x, y), "test": (x, y)} for n in "ab"})
    one, other = (dataclasses.replace(data, public=Examples(torch.rand(4, 3), y[:4])) for _ in range(2))
    settings = {"rounds": 2, "model": {"name": "mlp", "hidden": [4]}, "engine": {"name": "debug"}}
    with pytest.raises(KeyboardInterrupt):
        intarsia.run(settings, data=one, out=tmp_path / "run", observer=Stop(2))
    with pytest.raises(DataError, match="the data is not the same"):
        intarsia.resume(tmp_path / "run", data=other)
    assert intarsia.resume(tmp_path / "run", data=one).summary["finished"]


def test_public_data_of_another_population(tmp_path):
    x, y = torch.rand(6, 3), torch.tensor([0, 1, 2, 0, 1, 2])
    data = {"a": {"train": (x[:4], y[:4]), "test": (x[4:], y[4:])}}
    settings = load({"public": {"name": "digits", "clients": 1, "cohorts": 1}})
    setup = Experiment.build(settings, intarsia.experiment.given.Given(data=data)).setup
    assert setup.population.public is not None
    assert setup.population.public.x.shape[1:] in ((1, 8, 8), (1, 4, 4))
