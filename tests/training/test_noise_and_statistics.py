"""Noise that every batch gets anew; statistics of batch norms that are taken again before they are sent."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import intarsia
from intarsia.core import DataError, chance
from intarsia.data import Examples, Scaling
from intarsia.models.norms import refit_statistics
from intarsia.training import LOSSES
from intarsia.training.descent import batches, inputs_of
from intarsia.training.objectives import Situation

SCALING = Scaling(1 / 255, (0.5,), (0.25,))


def seen(examples, epochs=2, key="a"):
    at = Situation(nn.Linear(1, 1), LOSSES["cross_entropy"], {})
    return list(batches(at, examples, 50, epochs, chance.generator(0, key)))


def test_noise_is_of_the_batchs_own_and_of_the_right_size():
    """Bytes of 51 are 0.2, standardised -1.2; a deviation of 0.1 becomes 0.4 by the channel's 0.25."""
    x = torch.full((50, 1, 20, 20), 51, dtype=torch.uint8)
    examples = Examples(x, torch.zeros(50, dtype=torch.long), SCALING, noise=0.1)
    first, second = (batch.x for batch in seen(examples))
    assert first.mean().item() == pytest.approx(-1.2, abs=0.02)
    assert first.std().item() == pytest.approx(0.4, abs=0.02)
    assert not torch.equal(first.sort()[0], second.sort()[0])
    assert torch.equal(first, seen(examples)[0].x)
    assert not torch.equal(first, seen(examples, key="b")[0].x)
    clean = Examples(x, examples.y, SCALING)
    assert seen(clean)[0].x.unique().numel() == 1
    with pytest.raises(DataError, match=r"leave out population\.partition\.redrawn"):
        inputs_of(examples, torch.arange(3))


def test_statistics_are_the_mean_over_the_batches_and_the_norm_goes_on():
    """Batches 1, 3 and 5, 9: means 2 and 7, unbiased variances 2 and 8; a norm that nobody passes keeps its own."""
    norm, idle = nn.BatchNorm1d(1, momentum=0.3), nn.BatchNorm1d(1)
    idle.running_mean.fill_(6.0)
    model = nn.Module()
    model.norm, model.idle = norm, idle
    model.forward = norm.forward
    refit_statistics(model, [torch.tensor([[1.0], [3.0]]), torch.tensor([[5.0], [9.0]])])
    assert (norm.running_mean.item(), norm.running_var.item()) == pytest.approx((4.5, 5.0))
    assert norm.momentum == 0.3
    assert idle.running_mean.item() == 6.0
    refit_statistics(model, [torch.tensor([[1.0]])])
    assert norm.running_mean.item() == pytest.approx(4.5)


def test_a_run_sends_statistics_that_fit_its_weights(tmp_path):
    """One client, the norm first: what it sends are mean and variance of its inputs, not a tenth of them."""
    x = torch.randn(64, 2, generator=torch.Generator().manual_seed(1)) * 3 + 5
    y = (x[:, 0] > 5).long()
    data = {"c0": {"train": (x, y), "test": (x, y)}}
    net = nn.Sequential(nn.BatchNorm1d(2), nn.Linear(2, 2))
    settings = {"method": "fedavg", "rounds": 1, "training": {"batch_size": 64, "statistics": "refitted"}}
    run = intarsia.run(settings, data=data, model=net, out=tmp_path / "r")
    sent = run.client("c0").model().state_dict()
    assert torch.allclose(sent["0.running_mean"], x.mean(0), atol=1e-5)
    assert torch.allclose(sent["0.running_var"], x.var(0), atol=1e-4)


def test_noise_anew_reaches_the_training_of_images_and_not_their_test(mnist_folder, tmp_path):
    """The last client's training pixels are as they were, with noise to come; those of the test have theirs."""
    (tmp_path / "mnist").symlink_to(mnist_folder)
    population = {
        "name": "images",
        "dataset": "mnist",
        "clients": 3,
        "fraction": 0.1,
        "partition": {"name": "noise", "sigma": 0.3, "redrawn": True},
        "split": "own",
    }
    settings = {
        "method": "fedavg",
        "model": "logistic",
        "rounds": 1,
        "population": population,
        "data_folder": str(tmp_path),
    }
    run = intarsia.run(settings, out=tmp_path / "r")
    data = run.client(run.clients[2]).data
    assert data["train"].noise == pytest.approx(0.3)
    assert run.client(run.clients[0]).data["train"].noise == 0
    assert 0 <= float(data["train"].x.min()) <= float(data["train"].x.max()) <= 1
    assert float(data["test"].x.min()) < -0.1
