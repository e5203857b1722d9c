"""Numbers that float32 cannot tell apart: large ones that differ by little, such as timestamps."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

STEPS = 2**16
"""A column whose range is more steps of float32 than this keeps what matters of it."""


def merged_in_float32(inputs: Iterable[NDArray[Any]], advice: str, names: tuple[str, ...] = ()) -> str:
    """Return which column of inputs float32 would merge half of, in words with advice, or nothing; rows are samples."""
    by_shape: dict[tuple[int, ...], list[NDArray[Any]]] = {}
    for x in inputs:
        if x.size and not np.can_cast(x.dtype, np.float32):
            by_shape.setdefault(x.shape[1:], []).append(x.reshape(len(x), -1))
    for shape, tables in by_shape.items():
        for column in _suspects(tables):
            values = np.unique(np.concatenate([table[:, column] for table in tables]))
            kept = len(np.unique(values.astype(np.float32)))
            if 2 * kept <= len(values):
                place = ", ".join(map(str, (":", *(int(i) for i in np.unravel_index(column, shape)))))
                which = f"column '{names[column]}'" if shape == (len(names),) else f"x[{place}]"
                return f"{which} has {len(values)} different values, of which float32 can tell {kept} apart: {advice}"
    return ""


def _suspects(tables: list[NDArray[Any]]) -> list[int]:
    """Return the columns whose range is few steps of float32, though more than float64's own rounding."""
    low = np.min([table.min(0) for table in tables], axis=0).astype(np.float64)
    high = np.max([table.max(0) for table in tables], axis=0).astype(np.float64)
    largest = np.maximum(abs(low), abs(high))
    with np.errstate(over="ignore", invalid="ignore"):
        few = np.spacing(largest.astype(np.float32)) * STEPS > high - low
    return [int(column) for column in np.flatnonzero(few & (high - low > 4 * np.spacing(largest)))]
