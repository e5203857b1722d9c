"""What is counted of a model's predictions, and what such counts may be: whoever counts what cannot be is refused.

Clients count, so this is torch alone: a site needs no statistics, and a thousand clients take no longer than their
predictions. Counts are plain values, summed exactly over clients wherever that makes sense. Tests compare every count
with scikit-learn.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from intarsia.blocks import Number, NumberList
from intarsia.blocks.expected import SINGLE, Kind
from intarsia.blocks.plain import shown

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


MOST = SINGLE**2
"""No square of a number that a network gives is larger."""
ROUNDED = 1e-6
"""By how much sums may be off in their last digits, relatively."""


@dataclass(frozen=True)
class LabelTally(Kind):
    """Counted labels: of so many samples, so many of them right."""

    outputs: int
    samples: int
    correct: int | None
    """How many are right (None: not known, and all predictions are the same)."""
    parts: Collection[str]

    def fault(self, value: Any) -> str:
        """Return what is wrong with a tally."""
        if not isinstance(value, dict) or value.keys() != {"confusion", *self.parts}:
            return f"{shown(value)}: a tally of confusion{''.join(f', {p}' for p in sorted(self.parts))}"
        fault = self._confusion_fault(value["confusion"])
        if fault:
            return f"confusion = {fault}"
        kinds = {"auc": Number(0, 1), "brier": Number(0, 2), "bins": _Bins(self.samples, self.correct)}
        for part in self.parts:
            fault = "" if value[part] is None else kinds[part].fault(value[part])
            if fault:
                return f"{part} = {fault}"
        return ""

    def _confusion_fault(self, value: Any) -> str:
        if not isinstance(value, list) or not 1 <= len(value) <= self.samples:
            return f"{shown(value)}: a list of true label, label said and how many"
        label, count = (
            Number(0, self.outputs - 1, whole=True),
            Number(1, self.samples, whole=True),
        )
        for entry in value:
            if not isinstance(entry, list) or len(entry) != 3:
                return f"{shown(entry)}, which is not true label, label said and how many"
            fault = label.fault(entry[0]) or label.fault(entry[1]) or count.fault(entry[2])
            if fault:
                return fault
        return self._sum_fault(value)

    def _sum_fault(self, confusion: list[list[int]]) -> str:
        if len({(true, said) for true, said, _ in confusion}) < len(confusion):
            return "a pair of labels twice"
        total = sum(count for _, _, count in confusion)
        if total != self.samples:
            return f"counts of {total} samples, the client has {self.samples}"
        right = sum(count for true, said, count in confusion if true == said)
        if self.correct is None and len({said for _, said, _ in confusion}) > 1:
            return "several labels, where only the usual one can be said"
        if self.correct is not None and right != self.correct:
            return f"counts with {right} right, but {self.correct} are"
        return ""


@dataclass(frozen=True)
class _Bins(Kind):
    """Samples, hits and summed confidence by bin."""

    samples: int
    correct: int | None

    def fault(self, value: Any) -> str:
        """Return what is wrong with bins."""
        if not isinstance(value, list) or len(value) != BINS:
            return f"{shown(value)}: {BINS} bins were expected"
        for place, row in enumerate(value):
            fault = self._row_fault(place, row)
            if fault:
                return fault
        hits = sum(row[1] for row in value)
        if sum(row[0] for row in value) != self.samples or self.correct not in (None, hits):
            return "bins of other samples than those that were scored"
        return ""

    def _row_fault(self, place: int, row: Any) -> str:
        whole = Number(0, self.samples, whole=True)
        if not isinstance(row, list) or len(row) != 3:
            return f"{shown(row)}, which is not samples, hits and confidence"
        fault = (
            whole.fault(row[0])
            or whole.fault(row[1])
            or Number(0, self.samples * (1 + ROUNDED)).fault(row[2])
        )
        low, high = (row[0] * (place + end) / BINS for end in (0, 1)) if not fault else (0, 0)
        if not fault and (row[1] > row[0] or not low * (1 - ROUNDED) <= row[2] <= high * (1 + ROUNDED)):
            return f"{shown(row)}, which cannot be in bin {place + 1} of {BINS}"
        return fault


@dataclass(frozen=True)
class ValueTally(Kind):
    """Errors of predicted numbers and the spread of the targets, so many columns of each."""

    columns: int

    def fault(self, value: Any) -> str:
        """Return what is wrong with a tally."""
        kinds = {
            "mae": NumberList(self.columns, Number(0, SINGLE)),
            "mse": NumberList(self.columns, Number(0, MOST)),
            "mean": NumberList(self.columns, Number(-SINGLE, SINGLE)),
            "variance": NumberList(self.columns, Number(0, MOST)),
        }
        if not isinstance(value, dict) or value.keys() != kinds.keys():
            return f"{shown(value)}: a tally of {', '.join(kinds)}"
        for name, kind in kinds.items():
            absent = value[name] is None and name in ("mae", "mse")
            fault = "" if absent else kind.fault(value[name])
            if fault:
                return f"{name} = {fault}"
        return self._sum_fault(value["mae"], value["mse"])

    def _sum_fault(self, mae: list[float] | None, mse: list[float] | None) -> str:
        if mae is None or mse is None:
            return "" if mae is mse else "mae or mse without the other"
        pairs = zip(mae, mse, strict=True)
        wrong = any(a**2 > s * (1 + ROUNDED) for a, s in pairs)
        return "a mean error above the root of the mean square" if wrong else ""


@dataclass(frozen=True)
class Facts(Kind):
    """What a client says of its training data: how many labels it has (0: numbers), whether inputs are unscaled."""

    labels: int

    def fault(self, value: Any) -> str:
        """Return what is wrong with the facts."""
        if not isinstance(value, dict) or value.keys() != {"labels", "unscaled"}:
            return f"{shown(value)}: labels and unscaled were expected"
        if not isinstance(value["unscaled"], bool):
            return f"unscaled {shown(value['unscaled'])}, which is neither true nor false"
        fault = Number(min(1, self.labels), self.labels, whole=True).fault(value["labels"])
        return f"labels {fault}" if fault else ""
