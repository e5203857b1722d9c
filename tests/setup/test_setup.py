"""What clients and server agree on does not change once it is built."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from intarsia.core import CheckpointError
from intarsia.experiment import Experiment, load
from tests.conftest import SMALL


def test_a_setup_does_not_change():
    setup = Experiment.build(load(SMALL)).setup
    with pytest.raises(dataclasses.FrozenInstanceError):
        setup.population = setup.population


def test_a_setup_that_starts_from_other_blocks_leaves_the_first_as_it_was():
    setup = Experiment.build(load(SMALL, ["method=fedper"])).setup
    versions = {k: {n: b.version for n, b in t.initial.items()} for k, t in setup.templates.items()}
    weights = {k: {n: w.clone() for n, w in t.model.state_dict().items()} for k, t in setup.templates.items()}
    others = {
        key: {n: b.alike({m: t + 1 for m, t in b.tensors.items()}) for n, b in template.initial.items()}
        for key, template in setup.templates.items()
    }
    again = setup.starting_from(others)
    for key, template in again.templates.items():
        assert template.initial == others[key]
        assert all(torch.equal(w, weights[key][n] + 1) for n, w in template.model.state_dict().items())
    for key, template in setup.templates.items():
        assert {n: b.version for n, b in template.initial.items()} == versions[key]
        assert all(torch.equal(w, weights[key][n]) for n, w in template.model.state_dict().items())
    with pytest.raises(CheckpointError, match="another model than the one given now"):
        setup.starting_from({"another": {}})
