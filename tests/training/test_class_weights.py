"""Weights of labels: worked numbers, what a client without a label does, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn import functional

import intarsia
from intarsia.core import SettingsError
from intarsia.data import Examples
from intarsia.training import LOSSES, evaluate, weighted

CROSS = LOSSES["cross_entropy"]


def test_balanced_weights_make_labels_count_alike():
    y = torch.tensor([0, 0, 0, 1])
    found = weighted(CROSS, "balanced", y, ("ok", "bad", "worse"))
    assert found.weights is not None
    assert found.weights.tolist() == pytest.approx([4 / (2 * 3), 4 / (2 * 1), 1])  # 'worse' is not there
    assert float(found.weights[y].sum()) == pytest.approx(4)


def test_the_loss_is_weighted_in_training_and_plain_in_evaluation():
    outputs, y = torch.tensor([[1.0, 0.0], [0.0, 2.0]]), torch.tensor([0, 1])
    found = weighted(CROSS, {"bad": 3.0}, y, ("ok", "bad"))
    each = functional.cross_entropy(outputs, y, reduction="none")
    assert float(found(outputs, y)) == pytest.approx(float(each[0] + 3 * each[1]) / 2)
    identity, examples = torch.nn.Identity(), Examples(outputs, y)
    assert evaluate(identity, examples, found) == evaluate(identity, examples, CROSS)
    assert weighted(CROSS, "none", y, ("ok", "bad")) is CROSS
    wider = torch.cat([outputs, torch.zeros(2, 1)], dim=1)  # a model with an output that no label has
    assert torch.isfinite(found(wider, y))


def skewed():
    """Two clients that see mostly label 0; the second never sees label 1 in training."""
    generator = np.random.default_rng(0)
    y = (np.arange(80) % 10 == 0).astype(int)
    x = generator.normal(size=(80, 2)) + 1.2 * y[:, None]
    one = {"train": (x[:60], y[:60]), "test": (x[60:], y[60:])}
    calm = {"train": (x[:60][y[:60] == 0], y[:60][y[:60] == 0]), "test": (x[60:], y[60:])}
    return {"a": one, "b": calm}


SETTINGS = {
    "rounds": 8,
    "method": "local",
    "training": {"lr": 0.3, "epochs": 3},
    "engine": {"name": "debug", "device": "cpu"},
}


def predicted(out, **training) -> float:
    settings = {**SETTINGS, "training": {**SETTINGS["training"], **training}}
    run = intarsia.run(settings, data=skewed(), out=out)
    model = run.client("a").model()
    x = torch.as_tensor(skewed()["a"]["test"][0], dtype=torch.float32)
    return float((model(x).argmax(1) == 1).float().mean())


def test_a_rare_label_is_predicted_more_often(tmp_path):
    plain, balanced = predicted(tmp_path / "p"), predicted(tmp_path / "b", class_weights="balanced")
    by_label = predicted(tmp_path / "l", class_weights={"1": 9.0})
    assert plain < balanced
    assert plain < by_label


def test_what_cannot_be_weighted_is_refused(tmp_path):
    for change, message in (
        ({"training": {"class_weights": {"2": 3}}}, "there is no label '2'"),
        (
            {"training": {"class_weights": "balanced"}, "method": "fedem"},
            "'fedem' has a local step of its own",
        ),
        ({"training": {"class_weights": {"1": 0}}}, "greater than 0"),
    ):
        with pytest.raises(SettingsError, match=message):
            intarsia.run({**SETTINGS, **change}, data=skewed(), out=tmp_path / "run")
    numbers = {name: {s: (x, x[:, :1]) for s, (x, _) in own.items()} for name, own in skewed().items()}
    with pytest.raises(SettingsError, match="numbers are predicted, no labels"):
        intarsia.run(
            {**SETTINGS, "training": {"loss": "mse", "class_weights": "balanced"}},
            data=numbers,
            out=tmp_path / "n",
        )
