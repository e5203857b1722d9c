"""What a tally may be: a client that counts what cannot be is refused."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from intarsia.blocks import Number, NumberList
from intarsia.blocks.expected import SINGLE, Kind
from intarsia.blocks.plain import shown
from intarsia.judging.tallies import BINS

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
