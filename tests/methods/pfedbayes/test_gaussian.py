"""Gaussian layers and their divergence, by hand."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import nn
from torch.distributions import Normal
from torch.distributions import kl_divergence as torch_kl

import intarsia
from intarsia.methods.pfedbayes import Averaged, gaussian, kl_divergence
from intarsia.methods.pfedbayes.gaussian import Gaussian
from intarsia.models import CNN, add_adapters, remove_adapters


def test_the_divergence_of_two_weights_by_hand():
    rho = math.log(math.e - 1)  # a deviation of 1
    twice = math.log(math.e**2 - 1)
    q = {"w": torch.tensor([1.0]), "w_rho": torch.tensor([rho])}
    p = {"w": torch.tensor([3.0]), "w_rho": torch.tensor([twice])}
    assert kl_divergence(q, p).item() == pytest.approx(math.log(2) + (1 + 4) / 8 - 0.5)
    assert kl_divergence(q, q).item() == pytest.approx(0, abs=1e-7)


def test_the_divergence_is_torchs():
    torch.manual_seed(0)
    q, p = ({n: torch.randn(3, 2) for n in ("a", "a_rho", "b", "b_rho")} for _ in range(2))
    softplus = nn.functional.softplus
    expected = sum(
        torch_kl(Normal(q[n], softplus(q[n + "_rho"])), Normal(p[n], softplus(p[n + "_rho"]))).sum()
        for n in ("a", "b")
    )
    assert kl_divergence(q, p).item() == pytest.approx(expected.item(), rel=1e-5)


def test_weights_are_drawn_in_training_and_means_in_evaluation():
    torch.manual_seed(0)
    plain = nn.Linear(2, 3)
    layer = gaussian(plain, -1.0)
    x = torch.randn(4, 2)
    assert torch.equal(layer.eval()(x), plain(x))
    torch.manual_seed(1)
    drawn = layer.train()(x)
    torch.manual_seed(1)
    sigma = math.log(1 + math.exp(-1))
    weight, bias = (w + sigma * torch.randn_like(w) for w in (plain.weight, plain.bias))
    assert torch.allclose(drawn, x @ weight.T + bias, atol=1e-6)
    assert not hasattr(plain, "weight_rho")


def test_a_network_keeps_its_means_and_convolutions_their_settings():
    model = CNN(channels=(2, 3), hidden=4).build((1, 8, 8), 5).eval()
    made = gaussian(model, -3.0).eval()
    x = torch.randn(2, 1, 8, 8)
    assert torch.equal(made(x), model(x))
    assert {n for n, _ in made.named_parameters()} == {
        n + end for n, _ in model.named_parameters() for end in ("", "_rho")
    }
    assert not torch.equal(made.train()(x), made(x))
    assert torch.equal(copy.deepcopy(made).eval()(x), model(x))


def test_predictions_averaged_over_draws():
    torch.manual_seed(0)
    network = gaussian(nn.Linear(2, 3), 0.0)
    model = Averaged(network, 4).eval()
    x = torch.randn(5, 2)
    torch.manual_seed(2)
    outputs = model(x)
    torch.manual_seed(2)
    network.train()
    mean = torch.stack([network(x).softmax(1) for _ in range(4)]).mean(0)
    assert torch.allclose(outputs.exp(), mean, atol=1e-6)
    assert not any(m.drawing for m in model.modules() if isinstance(m, Gaussian))


def test_frozen_layers_stay_as_they_are():
    model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3, affine=False), nn.Linear(3, 2, bias=False))
    model[0].requires_grad_(False)
    names = {name for name, _ in gaussian(model, 0.0).named_parameters()}
    assert names == {"0.weight", "0.bias", "2.weight", "2.weight_rho"}


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (
            nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)),
            r"no Gaussian form: '1' is BatchNorm1d.*without norms",
        ),
        (nn.LSTM(2, 3), "no Gaussian form: 'LSTM' is LSTM"),
        (nn.Linear(2, 2).requires_grad_(False), "no trainable layer"),
    ],
)
def test_what_cannot_be_gaussian_says_so(model, message):
    with pytest.raises(intarsia.IntarsiaError, match=message):
        gaussian(model, -2.0)


@pytest.mark.parametrize("form", ["parallel", "series"])
@pytest.mark.parametrize("padding", [1, "same"])
def test_adapters_are_drawn_in_every_pass(form, padding):
    """Against two convolutions one after the other, with the draw made by hand."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(2, 3, 3, padding=padding), nn.Flatten(), nn.Linear(3 * 16, 2))
    conv = gaussian(add_adapters(net, form=form), -1.0)[0].train()
    x = torch.randn(2, 2, 4, 4)
    mean, rho = conv.adapter.weight, conv.adapter.weight_rho

    torch.manual_seed(5)
    y = conv(x)
    gradients = torch.autograd.grad(y.square().sum(), (mean, rho))
    torch.manual_seed(5)
    drawn = mean + (1 + rho.exp()).log() * torch.randn_like(mean)
    frozen = conv.base(x)
    expected = frozen + nn.functional.conv2d(x if form == "parallel" else frozen, drawn)
    assert torch.allclose(y, expected, atol=1e-5)
    for mine, theirs in zip(
        gradients, torch.autograd.grad(expected.square().sum(), (mean, rho)), strict=True
    ):
        assert torch.allclose(mine, theirs, rtol=1e-4, atol=1e-4)

    assert not torch.equal(conv(x), conv(x))
    conv.eval()
    assert torch.equal(conv(x), conv(x))
    assert torch.allclose(conv(x), remove_adapters(conv)(x), atol=1e-5)  # of the means
