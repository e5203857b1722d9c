"""Samples from gradients."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from intarsia.audit.inversion import Search, cosine_distance, decibels, errors, exact, first_linear, roughness


def _gradients(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> dict[str, torch.Tensor]:
    loss = nn.functional.cross_entropy(model(x), y)
    names = [n for n, _ in model.named_parameters()]
    return dict(zip(names, torch.autograd.grad(loss, list(model.parameters())), strict=True))


def test_a_linear_layer_gives_its_input_away_exactly() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 7), nn.ReLU(), nn.Linear(7, 3)).double()
    x = torch.rand(1, 3, 4, dtype=torch.float64)
    seen = _gradients(model, x, torch.tensor([2]))
    start = first_linear(model, (3, 4), seen)
    assert start == "1."
    found = exact(seen["1.weight"], seen["1.bias"])
    assert torch.allclose(found[0], x.flatten(), atol=1e-12)
    assert errors(found, x)[0] < 1e-24


def test_by_hand() -> None:
    """Gradients e x^T and e with e = (2, 0, -4), x = (1, 3): the second unit had none."""
    weight, bias = torch.tensor([[2.0, 6.0], [0.0, 0.0], [-4.0, -12.0]]), torch.tensor([2.0, 0.0, -4.0])
    assert exact(weight, bias).tolist() == [[1.0, 3.0], [1.0, 3.0]]
    assert errors(torch.tensor([[0.0, 0.0], [1.0, 1.0]]), torch.tensor([[1.0, 3.0]])) == [2.0]
    assert decibels(0.01, 1.0) == pytest.approx(20)
    assert decibels(0.0, 1.0) == pytest.approx(200)


def test_without_the_first_layers_bias_there_is_no_exact_way() -> None:
    model = nn.Sequential(nn.Linear(4, 3, bias=False), nn.Linear(3, 2))
    assert first_linear(model, (4,), dict(model.named_parameters())) is None
    other = nn.Sequential(nn.Linear(4, 3))
    assert first_linear(other, (4,), {"0.weight": torch.zeros(3, 4)}) is None


def test_a_layer_behind_others_is_not_the_first_even_if_it_has_as_many_inputs() -> None:
    model = nn.Sequential(nn.Conv2d(1, 4, 3, stride=2, padding=1), nn.Flatten(), nn.Linear(16, 3))
    assert first_linear(model, (1, 4, 4), dict(model.named_parameters())) is None


def test_distances() -> None:
    one, other = (
        [torch.tensor([1.0, 0.0]), torch.tensor([0.0])],
        [torch.tensor([0.0, 2.0]), torch.tensor([0.0])],
    )
    assert float(cosine_distance(one, other)) == pytest.approx(1)
    assert float(cosine_distance(one, one)) == pytest.approx(0)
    assert float(roughness(torch.tensor([[[[0.0, 1.0], [0.0, 1.0]]]]))) == pytest.approx(1)
    assert float(roughness(torch.rand(3, 4))) == 0


def test_a_search_finds_the_input_of_a_small_convolutional_network() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.Sigmoid(), nn.Flatten(), nn.Linear(8 * 36, 4))
    x, y = torch.zeros(1, 1, 6, 6), torch.tensor([1])
    x[..., 1:5, 2:4] = 1.0
    search = Search(model, nn.functional.cross_entropy, y, 0.0, 1.0, 200)
    (error,) = errors(search.inputs(_gradients(model, x, y), (1, 6, 6), 0, "test"), x)
    mean = float((x - x.mean()).square().mean())
    assert error < 0.1 * mean
    assert math.isfinite(error)
