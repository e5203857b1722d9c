"""How well groups of clients match others."""

from __future__ import annotations

from collections.abc import Sequence


def adjusted_rand(given: Sequence[str | int], found: Sequence[str | int]) -> float:
    """Return how well groups match those given (adjusted Rand index): 1 the same, 0 as by chance."""
    from sklearn.metrics import adjusted_rand_score

    return float(adjusted_rand_score(given, found))
