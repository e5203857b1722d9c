"""Objectives, optimisers and the solver against numbers worked out by hand, and against torch's own."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import Tensor, nn

from intarsia.core import SettingsError, chance
from intarsia.data import Examples
from intarsia.experiment import load
from intarsia.training import (
    LOSSES,
    Descent,
    Objective,
    Proximal,
    Situation,
    Training,
    channels_last_layout,
    evaluate,
    loss_for,
    train,
    try_model,
)
from intarsia.training.optimisers import OPTIMISERS


def linear(*weights: float) -> nn.Linear:
    model = nn.Linear(len(weights), 1, bias=False)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([weights]))
    return model


ONE = Examples(torch.tensor([[1.0, 2.0, 0.0]]), torch.tensor([[1.0]]))


def trained(model, objective, training, received=None, data=ONE, lr=None):
    situation = Situation(model, LOSSES["mse"], received or {})
    descent = Descent(objective, training, lr or training.lr, training.epochs)
    return train(situation, descent, data, chance.generator(0, "test"))


def test_plain_objective_by_hand():
    # w = [1, 1, 1], x = [1, 2, 0], y = 1: error 2, gradient 2 * 2 * x = [4, 8, 0]; lr 0.1
    model = linear(1, 1, 1)
    result = trained(model, Objective(), Training(lr=0.1))
    torch.testing.assert_close(model.weight.data, torch.tensor([[0.6, 0.2, 1.0]]))
    assert result.score.loss == 4
    assert result.steps == 1


def test_proximal_objective_by_hand():
    # received [0, 1, 3], mu 0.5: pull 0.5 * (w - received) = [.5, 0, -1] on top of [4, 8, 0]
    model = linear(1, 1, 1)
    trained(model, Proximal(0.5), Training(lr=0.1), {"weight": torch.tensor([[0.0, 1.0, 3.0]])})
    torch.testing.assert_close(model.weight.data, torch.tensor([[0.55, 0.2, 1.1]]))


def test_proximal_objective_with_nothing_received_is_plain():
    one, other = linear(1, 1, 1), linear(1, 1, 1)
    trained(one, Proximal(0.5), Training(lr=0.1))
    trained(other, Objective(), Training(lr=0.1))
    assert torch.equal(one.weight, other.weight)


def test_momentum_and_weight_decay_by_hand():
    # Two epochs of one batch, one weight 1, x = 1, y = 0, lr .1, momentum .5, decay 1.
    # g1 = 2*1 + 1 = 3, v = 3, w = .7; g2 = 2*.7 + .7 = 2.1, v = 3.6, w = .34
    model = linear(1.0)
    data = Examples(torch.ones(1, 1), torch.zeros(1, 1))
    trained(model, Objective(), Training(lr=0.1, momentum=0.5, weight_decay=1, epochs=2), data=data)
    torch.testing.assert_close(model.weight.data, torch.tensor([[0.34]]))


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("sgd", {}),
        ("sgd", {"momentum": 0.9}),
        ("sgd", {"momentum": 0.9, "weight_decay": 0.1}),
        ("adam", {}),
        ("adam", {"weight_decay": 0.1}),
    ],
)
def test_optimisers_do_what_torch_does(name, options):
    torch.manual_seed(0)
    mine = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 2))
    theirs = copy.deepcopy(mine)
    kind = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}[name]
    reference = kind(theirs.parameters(), lr=0.05, **options)
    optimiser = OPTIMISERS[name](list(mine.parameters()), Training(optimizer=name, **options), 0.05)
    x, y = torch.randn(16, 5), torch.randn(16, 2)
    for _ in range(20):
        nn.functional.mse_loss(mine(x), y).backward()
        optimiser.step()
        reference.zero_grad()
        nn.functional.mse_loss(theirs(x), y).backward()
        reference.step()
    for one, other in zip(mine.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


def step_weight(steps, training, lr, mu):
    return Descent(Proximal(mu), training, lr, 1).step_weight(steps)


def test_fednova_step_weights():
    assert step_weight(7, Training(), 0.1, 0.0) == 7
    rho, t = 0.9, 5
    closed = (t - rho * (1 - rho**t) / (1 - rho)) / (1 - rho)
    assert step_weight(t, Training(momentum=rho), 0.1, 0.0) == pytest.approx(closed)
    lr, mu = 0.1, 0.5
    closed = (1 - (1 - lr * mu) ** t) / (lr * mu)
    assert step_weight(t, Training(), lr, mu) == pytest.approx(closed)
    assert step_weight(4, Training(optimizer="adam"), 0.1, 0.0) == 4


@pytest.mark.parametrize(("momentum", "mu"), [(0.9, 0.0), (0.0, 1.0), (0.9, 1.0), (0.5, 4.0)])
def test_step_weight_is_the_weight_of_the_gradients(momentum, mu):
    # A constant gradient of 1: after t steps the parameter has moved by lr * |a|.
    class Constant(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.zeros(1, dtype=torch.float64))

        def forward(self, x):
            return self.w.expand(len(x), 1)

    class Slope(Proximal):
        def value(self, at, batch, outputs, fit):
            return super().value(at, batch, outputs, outputs.mean())

    model = Constant()
    training = Training(lr=0.1, momentum=momentum, epochs=8)
    result = trained(model, Slope(mu), training, {"w": torch.zeros(1, dtype=torch.float64)})
    assert result.step_weight * training.lr == pytest.approx(-model.w.item())


def test_step_weight_of_momentum_and_a_pull_by_hand():
    # rho 0.5, lr mu 0.1: v = 1, w = 1; v = 0.5 + 1 - 0.1 = 1.4, w = 2.4; v = 0.7 + 1 - 0.24 = 1.46, w = 3.86
    assert step_weight(3, Training(momentum=0.5), 0.1, 1.0) == pytest.approx(3.86)
    assert step_weight(8, Training(momentum=0.9), 0.1, 1.0) == pytest.approx(15.5322352)


def test_every_sample_is_seen_once_an_epoch():
    seen = []

    class Spy(Objective):
        def value(self, at, batch, outputs, fit):
            assert batch.rows.tolist() == batch.x[:, 0].tolist()
            seen.append(batch.x[:, 0].tolist())
            return fit

    data = Examples(torch.arange(10.0)[:, None], torch.zeros(10, 1))
    trained(linear(0.0), Spy(), Training(batch_size=4, epochs=2, lr=1e-9), data=data)
    assert [len(batch) for batch in seen] == [4, 4, 2, 4, 4, 2]
    for epoch in (seen[:3], seen[3:]):
        assert sorted(x for batch in epoch for x in batch) == list(range(10))
    assert seen[0] != seen[3]


def test_a_last_batch_of_one_is_left_out_for_batch_norm():
    model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Linear(3, 1))
    data = Examples(torch.randn(9, 2), torch.randn(9, 1))
    assert trained(model, Objective(), Training(batch_size=4), data=data).steps == 2
    alone = Examples(torch.randn(9, 3), torch.randn(9, 1))
    assert trained(linear(1, 1, 1), Objective(), Training(batch_size=4), data=alone).steps == 3


def test_channels_last_changes_no_result():
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(64, 2))
    fast = channels_last_layout(copy.deepcopy(plain))
    data = Examples(torch.randn(20, 3, 8, 8), torch.randint(0, 2, (20,)))
    loss = LOSSES["cross_entropy"]
    training = Training(lr=0.1, batch_size=8)
    at = Situation(fast, loss, {}, channels_last=True)
    train(at, Descent(Objective(), training, 0.1, 1), data, chance.generator(0, "a"))
    order = torch.randperm(20, generator=chance.generator(0, "a"))
    optimiser = torch.optim.SGD(plain.parameters(), lr=0.1)
    for start in (0, 8, 16):
        picked = order[start : start + 8]
        optimiser.zero_grad()
        nn.functional.cross_entropy(plain(data.x[picked]), data.y[picked]).backward()
        optimiser.step()
    for one, other in zip(plain.parameters(), fast.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("channels", [1, 3])
def test_models_that_flatten_with_view_keep_the_usual_layout(channels):
    class Viewed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.head = nn.Conv2d(channels, 4, 3), nn.Linear(4 * 36, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.conv(x).view(len(x), -1))

    x = torch.rand(6, channels, 8, 8).contiguous(memory_format=torch.channels_last)
    data, loss, model = Examples(x, torch.arange(6) % 2), LOSSES["cross_entropy"], Viewed()
    assert try_model(model, data, loss) is False
    assert evaluate(model, data, loss).n == 6
    order = chance.generator(0, "a")
    situation = Situation(model, loss, {})
    descent = Descent(Objective(), Training(batch_size=4), 0.1, 1)
    assert train(situation, descent, data, order).steps == 2


def test_evaluation_by_hand():
    # Outputs [0, log 3]: probabilities 1/4, 3/4; labels 1, 1, 0.
    model = nn.Linear(1, 2)
    with torch.no_grad():
        model.weight.zero_()
        model.bias.copy_(torch.tensor([0.0, math.log(3)]))
    score = evaluate(model, Examples(torch.zeros(3, 1), torch.tensor([1, 1, 0])), LOSSES["cross_entropy"])
    assert (score.n, score.correct) == (3, 2)
    assert score.loss == pytest.approx((2 * math.log(4 / 3) + math.log(4)) / 3)


def test_evaluation_in_batches_is_evaluation_at_once():
    model = linear(0.5, -1, 2)
    data = Examples(torch.randn(601, 3), torch.randn(601, 1))
    score = evaluate(model, data, LOSSES["mse"])
    whole = nn.functional.mse_loss(model(data.x), data.y)
    assert score.loss == pytest.approx(whole.item(), rel=1e-5)
    assert score.correct == -1


@pytest.mark.parametrize(
    ("schedule", "factors"),
    [
        ("constant", [1, 1, 1, 1]),
        ({"name": "step", "milestones": [2, 3], "gamma": 0.5}, [1, 1, 0.5, 0.25]),
        ({"name": "exponential", "gamma": 0.5}, [1, 0.5, 0.25, 0.125]),
        ("cosine", [1, 0.5 * (1 + math.sqrt(0.5)), 0.5, 0.5 * (1 - math.sqrt(0.5))]),
    ],
)
def test_learning_rates_by_round(schedule, factors):
    training = load({"training": {"lr": 2.0, "schedule": schedule}}).training
    assert [training.lr_in(round, 4) for round in (1, 2, 3, 4)] == pytest.approx([2 * f for f in factors])


def test_an_unknown_loss_is_an_error():
    with pytest.raises(SettingsError, match="no loss 'hinge'; there are: auto, cross_entropy, mse"):
        loss_for("hinge", "classification")


def test_keyed_chance():
    assert chance.key(0, "a", 1) == chance.key(0, "a", 1)
    assert len({chance.key(*k) for k in [(0, "a", 1), (1, "a", 1), (0, "b", 1), (0, "a", 2), (0, "a1")]}) == 5
    before = torch.get_rng_state()
    with chance.torch_seeded(0, "x"):
        one = torch.rand(3)
    assert torch.equal(before, torch.get_rng_state())
    with chance.torch_seeded(0, "x"):
        assert torch.equal(one, torch.rand(3))
