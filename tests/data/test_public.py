"""Public data: found, apart from all clients' data, and the same after it has travelled."""

from __future__ import annotations

import pytest
import torch

import intarsia
from intarsia.blocks import DataError
from intarsia.data.population import Examples, Scaling
from intarsia.data.public import from_tensors, to_block
from intarsia.experiment import Experiment
from intarsia.settings import load
from tests.conftest import SMALL


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


def test_public_data_of_another_population(tmp_path):
    x, y = torch.rand(6, 3), torch.tensor([0, 1, 2, 0, 1, 2])
    data = {"a": {"train": (x[:4], y[:4]), "test": (x[4:], y[4:])}}
    settings = load({"public": {"name": "digits", "clients": 1, "cohorts": 1}})
    setup = Experiment.build(settings, intarsia.experiment.Given(data=data)).setup
    assert setup.population.public is not None
    assert setup.population.public.x.shape[1:] in ((1, 8, 8), (1, 4, 4))
