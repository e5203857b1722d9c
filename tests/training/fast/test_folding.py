"""The descent folded into the backward pass: the same steps as with gradients, wherever it is allowed."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional

from intarsia.training import Descent, Objective, Proximal, Training
from intarsia.training.fast import foldable, folded


@pytest.fixture(autouse=True)
def however_small(monkeypatch):
    monkeypatch.setattr("intarsia.training.fast.folding.LARGE", 1)


def network() -> nn.Sequential:
    torch.manual_seed(0)
    first = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten())
    return nn.Sequential(first, nn.Linear(8, 5), nn.Tanh(), nn.Linear(5, 3, bias=False))


def step(model: nn.Module, training: Training, lr: float) -> None:
    x, y = torch.randn(6, 1, 4, 4, generator=torch.Generator().manual_seed(1)), torch.arange(6) % 3
    with folded(model, Descent(Objective(), training, lr, 1)):
        functional.cross_entropy(model(x), y).backward()


@pytest.mark.parametrize("decay", [0.0, 0.3])
def test_a_folded_step_is_a_step_of_torchs_sgd(decay):
    lr, fast = 0.5, network()
    slow, start = copy.deepcopy(fast), copy.deepcopy(fast.state_dict())
    step(slow, Training(plain=True), lr)
    step(fast, Training(weight_decay=decay), lr)
    assert [w.grad is None for w in fast.parameters()] == [False, False, True, True, True]
    torch.optim.SGD(fast.parameters(), lr, weight_decay=decay).step()
    torch.optim.SGD(slow.parameters(), lr, weight_decay=decay).step()
    for name, weight in slow.state_dict().items():
        torch.testing.assert_close(fast.state_dict()[name], weight, rtol=1e-5, atol=1e-6)
        assert not torch.equal(weight, start[name])


def test_a_folded_step_by_hand():
    """Two layers of one number: y = b a x with a = 2, b = 3, x = 1: the gradients are b x = 3 and a x = 2."""
    model = nn.Sequential(nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False))
    with torch.no_grad():
        model[0].weight.fill_(2.0)
        model[1].weight.fill_(3.0)
    with folded(model, Descent(Objective(), Training(), 0.1, 1)):
        model(torch.ones(1, 1)).sum().backward()
    assert float(model[0].weight.grad) == 3.0
    assert model[1].weight.grad is None
    assert float(model[1].weight.detach()) == pytest.approx(3.0 - 0.1 * 2.0)


@pytest.mark.parametrize(
    ("objective", "training"),
    [
        (Proximal(), Training()),
        (Objective(), Training(momentum=0.5)),
        (Objective(), Training(optimizer="adam")),
        (Objective(), Training(plain=True)),
    ],
)
def test_where_a_step_needs_gradients_nothing_is_folded(objective, training):
    model = network()
    with folded(model, Descent(objective, training, 0.1, 1)):
        model(torch.randn(2, 1, 4, 4)).sum().backward()
    assert all(weight.grad is not None for weight in model.parameters())


def test_layers_that_are_used_twice_tied_or_frozen_have_gradients():
    again = nn.Linear(4, 4)
    assert foldable(nn.Sequential(again, nn.ReLU(), again)) == []
    tied = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    tied[1].weight = tied[0].weight
    assert foldable(tied) == []
    half = network()
    half[1].bias.requires_grad_(False)
    assert foldable(half) == [half[3]]
    half[1].bias.requires_grad_(True)
    assert foldable(half) == [half[1], half[3]]


class Own(nn.Module):
    """A user's model: each of its layers is used in another way."""

    def __init__(self) -> None:
        super().__init__()
        self.once, self.twice, self.bare, self.never = (nn.Linear(4, 4) for _ in range(4))
        self.passes = 0
        self.register_buffer("last", torch.zeros(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.passes += 1
        x = self.twice(self.twice(self.once(x)))
        self.last = x.detach().mean(0)
        return functional.linear(x, self.bare.weight) + self.bare(x) + torch.rand(4)


class DataDecides(Own):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.once(x) if x.sum() > 0 else self.once(self.once(x))


class Twice(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(super().forward(x))


def test_of_a_users_model_those_layers_are_folded_that_are_used_once():
    model = Own()
    torch.manual_seed(3)
    assert foldable(model) == [model.once]
    assert model.passes == 0
    assert torch.equal(model.last, torch.zeros(4))
    drawn = torch.rand(1)
    torch.manual_seed(3)
    assert torch.equal(drawn, torch.rand(1))


def test_what_cannot_be_known_is_not_folded():
    hooked = network()
    hooked[3].register_forward_hook(lambda *_: None)
    assert foldable(hooked) == foldable(DataDecides()) == foldable(nn.Sequential(Twice(4, 4))) == []


def test_small_layers_have_gradients(monkeypatch):
    monkeypatch.setattr("intarsia.training.fast.folding.LARGE", 16)
    assert [layer.in_features for layer in foldable(network())] == [8]


def test_a_model_is_as_it_was_when_a_step_fails():
    model = network()
    with pytest.raises(RuntimeError), folded(model, Descent(Objective(), Training(), 0.1, 1)):
        model(torch.randn(2, 1, 5, 5))
    assert all("forward" not in module.__dict__ for module in model.modules())
