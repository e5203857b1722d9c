"""Mean and deviation of columns by exact sums: clients give counts, sums and squared sums, never rows."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from intarsia.core import DataError
from intarsia.data.preparation import UNKNOWN, Column

BITS = 53


@dataclass(frozen=True)
class Sums:
    """How many values, their sum and the sum of their squares, exactly: such sums commute bit for bit."""

    count: int = 0
    total: Fraction = Fraction(0)
    squares: Fraction = Fraction(0)

    @classmethod
    def of(cls, values: NDArray[Any]) -> Sums:
        """Add up values as whole numbers; those that are missing (NaN) do not count."""
        there = values[~np.isnan(values)].astype(np.float64)
        mantissa, exponent = np.frexp(there)
        whole = (mantissa * 2.0**BITS).astype(np.int64)
        total = squares = Fraction(0)
        for power in np.unique(exponent):
            own = whole[exponent == power].astype(object)  # Python's integers: nothing overflows
            step = Fraction(2) ** (int(power) - BITS)
            total += int(own.sum()) * step
            squares += int((own * own).sum()) * step * step
        return cls(len(there), total, squares)

    def __add__(self, other: Sums) -> Sums:
        return Sums(self.count + other.count, self.total + other.total, self.squares + other.squares)

    @property
    def mean(self) -> float:
        """The mean, rounded once."""
        return float(self.total / self.count)

    @property
    def deviation(self) -> float:
        """The standard deviation of the values; 1 where they are all the same, so that it can be divided by."""
        variance = (self.squares - self.total * self.total / self.count) / self.count
        return math.sqrt(variance) or 1.0


Known = Mapping[str, tuple[float, float]]
"""Means and deviations of columns, where they are given."""
Missing = str | float


@dataclass(frozen=True)
class Rule:
    """What is done to columns: how missing values are filled, and whether numbers are scaled."""

    missing: Missing
    scaled: bool
    known: Known

    def fitted(self, column: Column, sums: Sums, whose: str) -> Column:
        """Return a column as it is prepared, by the sums of the training values of those who share it."""
        carry = self.missing == "carry"
        if column.kind == "words":
            return replace(column, carry=carry, fill=UNKNOWN if self._fills else None)
        if not self.needs_sums:
            return replace(column, fill=float(self.missing)) if self._fills else column
        mean, deviation = self._moments(column, sums, whose)
        fill = self.missing if isinstance(self.missing, float | int) else mean
        return replace(
            column,
            carry=carry,
            fill=float(fill) if self._fills else None,
            offset=mean if self.scaled else 0.0,
            scale=deviation if self.scaled else 1.0,
        )

    @property
    def needs_sums(self) -> bool:
        """Whether columns are fitted to anything."""
        return self.scaled or self.missing in ("mean", "carry")

    @property
    def _fills(self) -> bool:
        return self.missing not in ("refuse", "drop")

    def _moments(self, column: Column, sums: Sums, whose: str) -> tuple[float, float]:
        name = column.name
        for known in (column.inputs[0], name):
            if known in self.known:
                return self.known[known]
        if not sums.count:
            raise DataError(
                f"column '{name}' of {whose} has no value in any training row, so that nothing can be fitted to it: "
                f'set population.scale_by = "all", give its mean and deviation (population.scales.{name} = [0, 1]) '
                f'or leave it out (population.ignore = ["{name}"])'
            )
        try:
            return sums.mean, sums.deviation
        except OverflowError as error:
            raise DataError(
                f"column '{name}' of {whose} has numbers too large to be scaled: put them into another unit"
            ) from error


def added(sums: Iterable[Sums]) -> Sums:
    """Return all sums as one, whatever their order."""
    total = Sums()
    for own in sums:
        total += own
    return total
