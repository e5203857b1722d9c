"""Counts and metrics: worked out by hand, and as scikit-learn has them."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from sklearn import metrics as reference

from intarsia.core import SettingsError
from intarsia.judging import tallies
from intarsia.judging.metrics import METRICS, chosen, mean_interval, measure, paired, parts_of, wilson
from intarsia.judging.tallies import Facts, LabelTally, ValueTally
from intarsia.judging.verdict import judged_rows, overall

PARTS = ["auc", "bins", "brier"]
LABELS = chosen(["auto", "precision", "recall"], {"classification"})
VALUES = chosen(["auto"], {"regression"})


def six() -> tuple[torch.Tensor, torch.Tensor]:
    """Six samples of two labels: four are 0, of which three are said to be; of two 1 one is."""
    sure = torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.6, 0.4], [0.3, 0.7], [0.1, 0.9], [0.7, 0.3]])
    return sure.log(), torch.tensor([0, 0, 0, 0, 1, 1])


def some(samples: int, labels: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    source = torch.Generator().manual_seed(seed)
    outputs = torch.randn(samples, labels, generator=source)
    return outputs, torch.randint(0, labels, (samples,), generator=source)


def test_six_samples_by_hand():
    tally = tallies.of_labels(*six(), PARTS)
    assert tally["confusion"] == [[0, 0, 3], [0, 1, 1], [1, 0, 1], [1, 1, 1]]
    (found,) = measure([tally], LABELS)
    assert found["accuracy"] == pytest.approx(4 / 6)
    assert found["balanced_accuracy"] == pytest.approx((3 / 4 + 1 / 2) / 2)
    assert found["recall_by_class"] == pytest.approx({0: 3 / 4, 1: 1 / 2})
    assert found["precision_by_class"] == pytest.approx({0: 3 / 4, 1: 1 / 2})
    assert found["f1"] == pytest.approx((3 / 4 + 1 / 2) / 2)
    # Pairs of a 1 and a 0, by the share of label 1: 0.9 is above all four; 0.3 above 0.1 and 0.2 alone.
    assert found["auc"] == pytest.approx(6 / 8)
    assert found["brier"] == pytest.approx((0.01 + 0.04 + 0.16 + 0.49 + 0.01 + 0.49) / 6)
    # Confidence 0.6, 0.7, 0.7, 0.8, 0.9, 0.9 lie in bins 9, 11, 12 and 14 of 15; each bin by itself.
    gaps = abs(1 - 0.6) + abs(0 - 1.4) + abs(1 - 0.8) + abs(2 - 1.8)
    assert found["ece"] == pytest.approx(gaps / 6)


@pytest.mark.parametrize("labels", [2, 5])
def test_all_clients_at_once_are_as_scikit_learn_has_each(labels):
    data = [some(samples, labels, samples) for samples in (60, 25, 12)]
    found = measure([tallies.of_labels(*own, PARTS) for own in data], LABELS)
    for (outputs, y), own in zip(data, found, strict=True):
        said, shares = outputs.argmax(1), outputs.double().softmax(1).numpy()
        words = {"average": "macro", "zero_division": 0}
        assert own["accuracy"] == reference.accuracy_score(y, said)
        assert own["balanced_accuracy"] == pytest.approx(reference.balanced_accuracy_score(y, said))
        assert own["f1"] == pytest.approx(reference.f1_score(y, said, **words))
        assert own["precision"] == pytest.approx(reference.precision_score(y, said, **words))
        assert own["recall"] == pytest.approx(reference.recall_score(y, said, **words))
        there = np.unique(y)
        truth = y.numpy()[:, None] == there
        assert own["auc"] == pytest.approx(reference.roc_auc_score(truth, shares[:, there]))
        truth = torch.nn.functional.one_hot(y, labels).numpy()
        scale = labels if labels > 2 else 1
        assert own["brier"] == pytest.approx(reference.mean_squared_error(truth, shares) * scale)


def test_ties_have_half_an_area_and_one_label_has_none():
    outputs, y = torch.zeros(4, 2), torch.tensor([0, 1, 0, 1])
    assert tallies.of_labels(outputs, y, ["auc"])["auc"] == 0.5
    assert tallies.of_labels(outputs, y * 0, ["auc"])["auc"] is None


def test_outputs_that_are_not_finite_have_labels_but_no_probabilities():
    outputs, y = six()
    outputs[0] = math.nan
    tally = tallies.of_labels(outputs, y, PARTS)
    assert [tally[part] for part in PARTS] == [None] * 3
    assert sum(count for *_, count in tally["confusion"]) == 6


@pytest.mark.parametrize("columns", [1, 3])
def test_errors_of_numbers_are_as_scikit_learn_has_them(columns):
    source = torch.Generator().manual_seed(0)
    y, outputs = (torch.randn(40, columns, generator=source).squeeze(1) for _ in range(2))
    (found,) = measure([tallies.of_values(outputs.reshape(40, columns), y)], VALUES)
    assert found["mae"] == pytest.approx(reference.mean_absolute_error(y, outputs))
    assert found["rmse"] == pytest.approx(math.sqrt(reference.mean_squared_error(y, outputs)))
    assert found["r2"] == pytest.approx(reference.r2_score(y, outputs))


def test_pooled_counts_are_those_of_all_samples_together():
    data = [some(samples, 4, samples) for samples in (30, 9)]
    own = tallies.pooled([tallies.of_labels(*one, PARTS) for one in data], [30, 9])
    everything = tallies.of_labels(torch.cat([o for o, _ in data]), torch.cat([y for _, y in data]), PARTS)
    names = [name for name in LABELS if name != "auc"]
    together, all_samples = measure([own, everything], names)
    for name in names:
        assert together[name] == pytest.approx(all_samples[name])
    assert "auc" not in own
    values = [(torch.randn(n), torch.randn(n) + n) for n in (5, 8)]
    both = tallies.pooled([tallies.of_values(*one) for one in values], [5, 8])
    together, all_samples = measure(
        [both, tallies.of_values(torch.cat([o for o, _ in values]), torch.cat([y for _, y in values]))],
        VALUES,
    )
    assert together == pytest.approx(all_samples)


def test_the_usual_answer_is_the_majority_or_the_mean():
    trained, y = torch.tensor([1, 1, 0, 1]), torch.tensor([0, 1, 1])
    tally = tallies.of_labels(tallies.usual_labels(trained, 2, 3), y, PARTS)
    assert tally["confusion"] == [[0, 1, 1], [1, 1, 2]]
    assert tally["brier"] == pytest.approx((0.75**2 + 2 * 0.25**2) / 3)
    numbers = tallies.of_values(tallies.usual_values(torch.tensor([1.0, 3.0]), 2), torch.tensor([2.0, 5.0]))
    assert numbers["mae"] == [1.5]
    assert numbers["mse"] == [4.5]


def test_columns_are_unscaled_if_wide_apart_or_far_from_zero():
    x = torch.randn(50, 3, generator=torch.Generator().manual_seed(0))
    assert not tallies.unscaled(x)
    assert tallies.unscaled(x * torch.tensor([1.0, 1.0, 500.0]))
    assert tallies.unscaled(x + torch.tensor([0.0, 300.0, 0.0]))
    assert not tallies.unscaled(torch.ones(5, 3))
    assert not tallies.unscaled(torch.ones(5, 1, 8, 8))
    assert not tallies.unscaled(torch.ones(5, 3, dtype=torch.long))


def test_wilson_and_paired_by_known_numbers():
    assert wilson(8, 10) == pytest.approx([0.4901625, 0.9433178], abs=1e-6)
    assert wilson(12, 12)[0] == pytest.approx(0.7575, abs=1e-4)
    assert mean_interval([1.0, 2.0, 3.0]) == pytest.approx(
        [2 - 4.302653 / math.sqrt(3), 2 + 4.302653 / math.sqrt(3)]
    )
    assert mean_interval([1.0]) is None
    found = paired([3.0, 5.0, 4.0], [1.0, 2.0, 3.0], few=True)
    # Differences 2, 3, 1: t = 2 / (1 / sqrt 3), with two degrees of freedom.
    assert (found.mean, found.pairs, found.test) == (2.0, 3, "t")
    assert found.p == pytest.approx(0.0741799, abs=1e-6)
    assert paired([1.0, 1.0], [1.0, 1.0], few=True).p == 1.0
    assert paired(list(range(10)), [n - 1 for n in range(10)], few=False).p is None


def test_metrics_are_chosen_by_name():
    assert chosen(["auto"], {"regression"}) == ("mae", "rmse", "r2")
    assert chosen([], {"classification"}) == ()
    assert parts_of(["ece", "accuracy"]) == ["bins"]
    with pytest.raises(SettingsError, match="no metric 'balanced'; did you mean 'balanced_accuracy'"):
        chosen(["balanced"], {"classification"})
    with pytest.raises(SettingsError, match="'mae' is for regression"):
        chosen(["mae"], {"classification"})
    assert set(METRICS) >= {"accuracy", "balanced_accuracy", "f1", "auc", "brier", "ece", "mae", "rmse", "r2"}


def test_clients_over_clients():
    counted = [
        {"client": name, "task": "", "split": "test", "stage": "own", "n": len(y)}
        | {"tally": tallies.of_labels(o, y, []), "usual_tally": tallies.of_labels(o * 0, y, [])}
        for name, o, y in (
            ("a", torch.eye(2)[[0, 0, 1, 1]], torch.tensor([0, 0, 1, 0])),
            ("b", torch.eye(2)[[0, 0]], torch.tensor([0, 1])),
        )
    ]
    alone = {("a", "test"): {"metrics": {"accuracy": 1.0}}, ("b", "test"): {"metrics": {"accuracy": 0.25}}}
    rows = judged_rows(counted, ["accuracy"], alone)
    found = overall(rows, ["accuracy", "recall_by_class"], {"": ["ok", "bad"]})
    spread = {"mean": 0.625, "weighted": 4 / 6, "p10": 0.525, "worst": 0.5, "clients": 2, "pooled": 4 / 6}
    assert found["metrics"]["accuracy"] == pytest.approx(spread)
    assert found["confusion"] == [[3, 1], [1, 1]]
    assert found["by_class"] == {"recall": {"ok": 0.75, "bad": 0.5}}
    assert found["gain"]["mean"] == pytest.approx(0.0)
    assert [one["client"] for one in found["gain"]["losers"]] == ["a"]
    assert found["worst"][0] == {"client": "b", "n": 2, "accuracy": 0.5, "usual": 0.5}


HONEST = tallies.of_labels(*six(), PARTS)
KIND = LabelTally(2, 6, 4, PARTS)


@pytest.mark.parametrize(
    ("lie", "message"),
    [
        ({"confusion": [[0, 0, 4], [1, 0, 1], [1, 1, 1]]}, "with 5 right, but 4 are"),
        ({"confusion": [[0, 0, 3], [0, 1, 1], [1, 0, 1]]}, "of 5 samples, the client has 6"),
        ({"confusion": [[0, 0, 1]] * 3 + [[0, 1, 2], [1, 1, 1]]}, "a pair of labels twice"),
        ({"confusion": [[0, 2, 3], [0, 1, 1], [1, 1, 2]]}, "not between 0 and 1"),
        ({"confusion": [[0, 0, -3]]}, "not between 1 and 6"),
        ({"confusion": [[0, 0, 10**400]]}, "whole number of"),
        ({"confusion": [[0, 0]]}, "not true label"),
        ({"confusion": []}, "a list of true label"),
        ({"confusion": None}, "a list of true label"),
        ({"confusion": [[0, 0, 1]] * 1000}, "a list of true label"),
        ({"auc": 1.5}, "auc = 1.5"),
        ({"auc": math.nan}, "auc = nan"),
        ({"brier": -0.1}, "brier = -0.1"),
        ({"bins": [[6, 4, 5.0]]}, "15 bins were expected"),
        ({"bins": [[6, 4, 5.0], *[[0, 0, 0.0]] * 14]}, "cannot be in bin 1"),
        ({"bins": [*[[0, 0, 0.0]] * 14, [6, 5, 5.9]]}, "other samples than those"),
        ({"more": 1}, "a tally of confusion"),
    ],
)
def test_a_lie_about_labels_is_found(lie, message):
    assert KIND.fault(HONEST) == ""
    assert message in KIND.fault({**HONEST, **lie})


def test_a_lie_about_numbers_or_facts_is_found():
    honest = {"mae": [1.0], "mse": [2.0], "mean": [0.0], "variance": [1.0]}
    kind = ValueTally(1)
    assert kind.fault(honest) == ""
    assert kind.fault({**honest, "mae": None, "mse": None}) == ""
    assert "without the other" in kind.fault({**honest, "mse": None})
    assert "above the root" in kind.fault({**honest, "mae": [2.0]})
    assert "1 finite numbers" in kind.fault({**honest, "mae": [1.0, 1.0]})
    assert "not between" in kind.fault({**honest, "variance": [-1.0]})
    assert "a tally of" in kind.fault([])
    assert Facts(3).fault({"labels": 3, "unscaled": False}) == ""
    assert "neither true nor false" in Facts(3).fault({"labels": 3, "unscaled": 1})
    assert "labels 4" in Facts(3).fault({"labels": 4, "unscaled": True})
    usual = LabelTally(2, 6, None, [])
    assert "only the usual one" in usual.fault({"confusion": HONEST["confusion"]})
