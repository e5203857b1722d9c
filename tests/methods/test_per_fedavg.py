"""Per-FedAvg against a slow implementation of its Algorithm 1, with the exact Hessian."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import intarsia
from tests.conftest import SMALL
from tests.methods import slow

ALPHA = 0.3


def hessian_times(w, x, y, v):
    """The exact product: the derivative of the gradient along v."""
    p = slow.probabilities(w, x)
    along = x @ v["weight"].T + v["bias"]
    change = p * (along - (p * along).sum(1, keepdims=True))
    return {"weight": change.T @ x / len(y), "bias": change.mean(0)}


def test_the_slow_hessian_is_the_derivative_of_the_gradient():
    x, y = slow.arrays(slow.population()["c2"])
    w, v = slow.start(), slow.gradient(slow.start(), x, y)
    ends = [slow.gradient(slow.plus(w, v, side), x, y) for side in (1e-5, -1e-5)]
    slow.close(
        {k: (ends[0][k] - ends[1][k]) / 2e-5 for k in v}, hessian_times(w, x, y, v), rtol=1e-6, atol=1e-9
    )


def play(data, rounds, exact):
    w = slow.start()
    for round in range(1, rounds + 1):
        done = {}
        for name, entry in data.items():
            mine, (x, y) = w, slow.arrays(entry)
            orders = [slow.batches(len(y), name, round, p) for p in ("inner", "batches", "curvature")]
            for first, second, third in zip(*orders, strict=True):
                step = slow.plus(mine, slow.gradient(mine, x[first], y[first]), -ALPHA)
                v = slow.gradient(step, x[second], y[second])
                if exact:
                    v = slow.plus(v, hessian_times(mine, x[third], y[third], v), -ALPHA)
                mine = slow.plus(mine, v, -slow.LR)
            done[name] = mine
        w = slow.mean(done, slow.samples(data))
    return w


@pytest.mark.parametrize("variant", ["fo", "hf"])
def test_against_a_slow_implementation(variant, tmp_path):
    data = slow.population()
    changes = [f"method.alpha={ALPHA}", f"method.variant={variant}", "method.delta=0.01"]
    run = slow.run(tmp_path / "r", "per_fedavg", data, *changes)
    w = play(data, 3, exact=variant == "hf")
    slow.close(slow.shared(run), w, rtol=1e-3, atol=1e-4)
    other = play(data, 3, exact=variant != "hf")
    assert not np.allclose(slow.shared(run)["weight"], other["weight"], rtol=1e-3, atol=1e-3)
    for name, entry in data.items():
        x, y = slow.arrays(entry)
        now = slow.shared(run)
        slow.close(slow.own(run, name), slow.plus(now, slow.gradient(now, x, y), -ALPHA))
    stages = {(row["round"], row["stage"]) for row in run.metrics if row["split"] == "test"}
    assert stages == {(r, s) for r in (1, 2, 3) for s in ("before", "own")}


def test_dropout_is_the_same_on_both_sides_of_the_difference(tmp_path):
    """Else two masks would be told apart by delta, and the product would be of the order 1 / delta."""

    def model() -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.5), nn.Linear(8, 3))

    changes = ["method.delta=1e-3", "method.alpha=0.1"]
    run = slow.run(tmp_path / "r", "per_fedavg", slow.population(), *changes, model=model())
    for name, tensor in run.client("c0").model().state_dict().items():
        assert torch.allclose(tensor, model().state_dict()[name], atol=2), name


def test_it_learns_the_digits_and_a_step_helps(tmp_path):
    changes = ["method=per_fedavg", "rounds=15", "training.epochs=3", "method.alpha=0.1"]
    run = intarsia.run(SMALL, changes=changes, out=tmp_path / "r")
    assert run.summary["accuracy"]["mean"] > 0.8
    assert run.summary["accuracy"]["mean"] > run.summary["before"]["mean"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("method.alpha=0", "method.alpha: input should be greater than 0"),
        ("method.delta=-0.1", "method.delta: input should be greater than 0"),
        ("method.variant=exact", "method.variant: input should be 'hf' or 'fo'"),
    ],
)
def test_bad_settings(change, message, tmp_path):
    with pytest.raises(intarsia.IntarsiaError, match=message):
        slow.run(tmp_path / "r", "per_fedavg", slow.population(), change)
