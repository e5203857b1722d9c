"""One client's rows in training, validation and test shares."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from intarsia.core import DataError, chance
from intarsia.data.partitions.base import Rows


def stratified(
    labels: Rows, rows: Rows, shares: Mapping[str, float], seed: int, purpose: str | int
) -> dict[str, Rows]:
    """Split one client's rows into named shares, each label in proportion; every row is used once.

    The sizes are those of the largest remainder, except that a share above 0 gets at least one row where
    there are enough. Each share takes evenly spaced rows of what is left, sorted by label, so that a label
    is at most a row or two off its proportion and rare labels do not all fall to the same share.
    """
    random = chance.numpy_generator(seed, "stratified", purpose)
    left = random.permutation(np.sort(np.asarray(rows, np.int64)))
    own = labels[left]
    order = random.permutation(int(own.max(initial=0)) + 1)
    left = left[np.argsort(order[own], kind="stable")]
    parts = {}
    for name, size in _apportioned(len(left), shares).items():
        chosen = _evenly(size, len(left), random)
        parts[name] = np.sort(left[chosen])
        left = left[~chosen]
    return parts


def _apportioned(number: int, shares: Mapping[str, float]) -> dict[str, int]:
    """Return sizes that sum to the number: the largest remainders are rounded up."""
    wanted = np.array(list(shares.values()), np.float64)
    if not (len(wanted) and (wanted >= 0).all() and math.isclose(wanted.sum(), 1, abs_tol=1e-6)):
        raise DataError(f"the shares of a split must be at least 0 and sum to 1, not {dict(shares)}")
    exact = number * wanted / wanted.sum()
    sizes = np.floor(exact).astype(np.int64)
    sizes[np.argsort(sizes - exact, kind="stable")[: number - sizes.sum()]] += 1
    for empty in np.flatnonzero((sizes == 0) & (wanted > 0)):
        if sizes.max() > 1:
            sizes[sizes.argmax()] -= 1
            sizes[empty] += 1
    return dict(zip(shares, sizes.tolist(), strict=True))


def _evenly(size: int, total: int, random: np.random.Generator) -> NDArray[np.bool_]:
    """Choose positions at even distances from a random start."""
    start = int(random.integers(max(1, total)))
    steps = (np.arange(total + 1) * size + start) // max(1, total)
    return np.diff(steps) > 0
