"""What a column of a table holds: numbers, words or times, how many are missing, how many differ."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from intarsia.data.cells import forms_of_time, is_missing, number, numbers
from intarsia.data.tables import Table

Kind = Literal["number", "words", "time", "mixed", "empty"]


@dataclass
class Seen:
    """A column as it was seen; `role` is what it is taken for, `why` says so in words."""

    name: str
    kind: Kind
    rows: int
    missing: int
    distinct: int
    whole: bool = False
    """Whether all its numbers are whole."""
    low: float | None = None
    high: float | None = None
    mean: float | None = None
    deviation: float | None = None
    examples: tuple[str, ...] = ()
    odd: str = ""
    """A word among numbers, and where it stands."""
    role: str = "feature"
    why: str = ""

    @property
    def constant(self) -> bool:
        """Whether it says the same wherever it says anything."""
        return self.distinct == 1 and not self.missing

    @property
    def counts(self) -> bool:
        """Whether it has another value in every row, as numbers of rows and parts have."""
        return self.distinct == self.rows and self.rows > 2 and (self.kind == "words" or self.whole)

    def to_json(self) -> dict[str, Any]:
        """Return plain values; only what is there."""
        about = {
            "name": self.name,
            "role": self.role,
            "kind": self.kind,
            "missing": self.missing,
            "distinct": self.distinct,
            "examples": list(self.examples),
        }
        numbers = {"low": self.low, "high": self.high, "mean": self.mean, "deviation": self.deviation}
        return {
            **about,
            **{key: value for key, value in numbers.items() if value is not None},
            **({"why": self.why} if self.why else {}),
        }


def seen(table: Table, name: str) -> Seen:
    """Look at a column."""
    cells = table.columns[name]
    there = [cell for cell in cells if not is_missing(cell)]
    different = list(dict.fromkeys(there))
    found = Seen(
        name,
        _kind(different),
        len(cells),
        len(cells) - len(there),
        len(different),
        examples=tuple(different[:3]),
    )
    if found.kind == "number":
        _measure(found, there)
    if found.kind == "mixed":
        row = next(i for i, cell in enumerate(cells) if not is_missing(cell) and number(cell) is None)
        found.odd = f"'{cells[row]}' ({table.line(row)})"
    return found


def _kind(different: Sequence[str]) -> Kind:
    if not different:
        return "empty"
    wrong = numbers(different)[1]
    if not wrong:
        return "number"
    if len(wrong) < len(different):
        return "mixed"
    return "time" if forms_of_time(different) else "words"


def _measure(found: Seen, cells: Sequence[str]) -> None:
    values = numbers(cells)[0]
    found.whole = bool((values == np.round(values)).all())
    found.low, found.high = float(values.min()), float(values.max())
    found.mean, found.deviation = float(values.mean()), float(values.std())
