"""Labels from what clients send, by numbers worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from intarsia.audit.labels import by_neighbours, head_change, heads_of, score, shares_from


def test_the_bias_of_one_step_is_the_distribution_of_the_labels() -> None:
    """From zero weights p is 1 / 4 for every label; with lr 0.5 the bias moves by 0.5 * (share - 1 / 4)."""
    model = nn.Linear(3, 4)
    with torch.no_grad():
        model.weight.zero_()
        model.bias.zero_()
    y = torch.tensor([0, 0, 0, 1, 1, 3, 3, 3])
    loss = nn.functional.cross_entropy(model(torch.randn(8, 3)), y)
    (gradient,) = torch.autograd.grad(loss, [model.bias])
    change = head_change({"bias": -0.5 * gradient}, ["bias"])
    assert change is not None
    assert change == pytest.approx([0.0625, 0, -0.125, 0.0625])
    assert shares_from(change, 0.5) == pytest.approx([3 / 8, 2 / 8, 0, 3 / 8])


def test_shares_are_never_below_nothing_and_add_up() -> None:
    assert shares_from(np.asarray([1.0, -1.0]), 0.5) == pytest.approx([1, 0])
    assert shares_from(np.asarray([-9.0, -9.0]), 1) == pytest.approx([0.5, 0.5])


def test_a_head_is_what_raises_its_label_not_what_has_its_size() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 5))
    assert heads_of(model, (2, 3), 5) == ["3.bias"]
    assert head_change({"1.bias": torch.zeros(5)}, ["3.bias"]) is None


def test_models_of_tokens_or_of_many_scores_have_no_head_that_can_be_read() -> None:
    assert heads_of(nn.Sequential(nn.Embedding(5, 3), nn.Flatten(), nn.Linear(6, 4)), (2,), 4) == []
    assert heads_of(nn.Linear(3, 4), (2, 3), 4) == []


def test_neighbours_lend_their_labels() -> None:
    true = {
        "a": np.asarray([1.0, 0]),
        "b": np.asarray([0.8, 0.2]),
        "c": np.asarray([0, 1.0]),
        "d": np.asarray([0.1, 0.9]),
    }
    features = {name: np.asarray([v]) for name, v in {"a": 0.0, "b": 0.1, "c": 5.0, "d": 5.1}.items()}
    found = by_neighbours(features, true, 1)
    assert found["a"].tolist() == [0.8, 0.2]
    assert found["d"].tolist() == [0, 1]
    # Distances: a 0.2, b 0.2, c 0.1, d 0.1; the mean of all is (0.475, 0.525): 0.525, 0.325, 0.475, 0.375.
    figures = score(found, true)
    assert figures["distance"] == pytest.approx(0.15)
    assert figures["control_distance"] == pytest.approx(0.425)
