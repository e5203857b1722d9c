"""What is counted of a model's predictions: plain values, summed exactly over clients wherever that makes sense.

Clients count, so this is torch alone: a site needs no statistics, and a thousand clients take no longer than their
predictions. Tests compare every count with scikit-learn.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

Tally = dict[str, Any]
"""Plain values; of labels: `confusion` and what was asked beside it; of values: errors and spread of the targets."""
BINS = 15
"""Of equal width, for the calibration error (Guo et al. 2017)."""
FAR = 100
"""How many times wider one column may be than another before inputs count as unscaled."""
LARGEST = torch.finfo(torch.float32).max
"""Errors above this count as not finite."""
OFFSET = 30
"""How many standard deviations a column's mean may be away from 0, likewise."""


def of_labels(outputs: Tensor, y: Tensor, parts: Collection[str]) -> Tally:
    """Count predicted labels: true, predicted and how many of each pair; and parts that need probabilities."""
    outputs = outputs.double()
    pairs, counts = torch.unique(torch.stack((y, outputs.argmax(1)), 1), dim=0, return_counts=True)
    tally: Tally = {"confusion": torch.cat((pairs, counts[:, None]), 1).tolist()}
    if parts:
        shares = outputs.softmax(1)
        sound = bool(shares.isfinite().all())
        tally |= {part: PARTS[part](shares, y) if sound else None for part in sorted(parts)}
    return tally


def of_values(outputs: Tensor, y: Tensor, units: Sequence[tuple[float, float]] = ()) -> Tally:
    """Count errors of predicted numbers, column by column: means over samples (none if they are not finite).

    `units` are offset and scale of each column, where numbers are scaled: what is counted is in the targets' own.
    """
    targets = y.double().flatten(1) if y.dim() > 1 else y.double()[:, None]
    errors = outputs.double().reshape(targets.shape) - targets
    if units:
        offset, scale = torch.tensor(units, dtype=torch.float64, device=y.device).T
        targets, errors = targets * scale + offset, errors * scale
    spread = {"mean": targets.mean(0).tolist(), "variance": targets.var(0, correction=0).tolist()}
    if not (errors.abs() <= LARGEST).all():
        return {"mae": None, "mse": None, **spread}
    return {"mae": errors.abs().mean(0).tolist(), "mse": errors.square().mean(0).tolist(), **spread}


def usual_labels(trained: Tensor, outputs: int, samples: int) -> Tensor:
    """Return what a model would say that only knows how often each label is there: the majority, always."""
    return torch.bincount(trained, minlength=outputs).double().log().expand(samples, -1)


def usual_values(trained: Tensor, samples: int) -> Tensor:
    """Return what a model would say that only knows the mean of the targets."""
    return trained.double().mean(0).expand(samples, *trained.shape[1:])


def unscaled(x: Tensor) -> bool:
    """Return whether columns of numbers are so unlike in range, or so far from 0, that training suffers."""
    if x.dim() not in (2, 3) or not x.is_floating_point():
        return False
    columns = x.double().reshape(-1, x.shape[-1])
    low, high = torch.aminmax(columns, dim=0)
    moving = high > low
    if not moving.any():
        return False
    ranges = (high - low)[moving]
    mean, std = columns.mean(0)[moving].abs(), columns.std(0, correction=0)[moving]
    return bool(ranges.max() > FAR * ranges.min() or (mean > OFFSET * std).any())


def brier(shares: Tensor, y: Tensor) -> float:
    """Return the mean square distance of probabilities from what was; of two labels, half of it (0 ... 1)."""
    truth = functional.one_hot(y, shares.shape[1])
    scale = 2 if shares.shape[1] == 2 else 1
    return float((shares - truth).square().sum(1).mean()) / scale


def auc(shares: Tensor, y: Tensor) -> float | None:
    """Return the area under the ROC curve, each label that is there against the rest, and the mean of them.

    Of one label it is U / (n1 n0), with U Mann and Whitney's: the ranks of its samples less n1 (n1 + 1) / 2; ties have
    the mean rank. With one label alone there is none.
    """
    labels, counts = torch.unique(y, return_counts=True)
    if len(labels) < 2:
        return None
    values = shares[:, labels].T.contiguous()
    ordered = values.sort(1).values
    after = torch.searchsorted(ordered, values, right=True)
    ranks = (torch.searchsorted(ordered, values) + after + 1).double() / 2
    mine = (labels[:, None] == y).double()
    over = (ranks * mine).sum(1) - counts * (counts + 1) / 2
    return float((over / (counts * (len(y) - counts))).mean())


def bins(shares: Tensor, y: Tensor) -> list[list[float]]:
    """Return samples, hits and summed confidence in each bin of confidence (above its lower end, up to its upper)."""
    confidence, predicted = shares.max(1)
    place = (confidence * BINS).ceil().long().sub(1).clamp(0, BINS - 1)
    count = torch.bincount(place, minlength=BINS).tolist()
    hits = torch.bincount(place[predicted == y], minlength=BINS).tolist()
    sums = torch.zeros(BINS, dtype=torch.float64).index_add_(0, place, confidence).tolist()
    return [list(row) for row in zip(count, hits, sums, strict=True)]


PARTS: dict[str, Callable[[Tensor, Tensor], Any]] = {"auc": auc, "brier": brier, "bins": bins}
"""What needs probabilities."""


def samples_of(tally: Tally) -> int:
    """Return how many predictions of labels were counted."""
    return sum(count for _, _, count in tally["confusion"])


def pooled(tallies: Sequence[Tally], samples: Sequence[int]) -> Tally:
    """Return the tally of all samples together; an area under a curve cannot be pooled, so that there is none."""
    if "confusion" not in tallies[0]:
        return _pooled_values(tallies, samples)
    confusion: Counter[tuple[int, int]] = Counter()
    for tally in tallies:
        confusion.update({(true, said): count for true, said, count in tally["confusion"]})
    found: Tally = {"confusion": [[*pair, count] for pair, count in sorted(confusion.items())]}
    if _all_have("brier", tallies):
        found["brier"] = _mean([tally["brier"] for tally in tallies], samples)
    if _all_have("bins", tallies):
        found["bins"] = [
            [math.fsum(column) for column in zip(*rows, strict=True)]
            for rows in zip(*(tally["bins"] for tally in tallies), strict=True)
        ]
    return found


def _pooled_values(tallies: Sequence[Tally], samples: Sequence[int]) -> Tally:
    """Return errors and spread over all samples: the variance is that within clients and that of their means."""
    found: Tally = {"mae": None, "mse": None}
    for part in ("mae", "mse", "mean"):
        if _all_have(part, tallies):
            found[part] = [_mean(column, samples) for column in _columns(tallies, part)]
    within = [_mean(column, samples) for column in _columns(tallies, "variance")]
    between = [
        _mean([(value - mean) ** 2 for value in column], samples)
        for column, mean in zip(_columns(tallies, "mean"), found["mean"], strict=True)
    ]
    found["variance"] = [a + b for a, b in zip(within, between, strict=True)]
    return found


def _columns(tallies: Sequence[Tally], part: str) -> list[tuple[float, ...]]:
    return list(zip(*(tally[part] for tally in tallies), strict=True))


def _all_have(part: str, tallies: Sequence[Mapping[str, Any]]) -> bool:
    return all(tally.get(part) is not None for tally in tallies)


def _mean(values: Sequence[float], samples: Sequence[int]) -> float:
    return math.fsum(v * n for v, n in zip(values, samples, strict=True)) / sum(samples)
