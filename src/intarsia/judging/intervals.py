"""How far a figure can be trusted: intervals and paired tests, by scipy."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

LEVEL = 0.95


def wilson(correct: int, samples: int) -> list[float]:
    """Return Wilson's interval (95 %) of a share of so many samples."""
    from scipy.stats import binomtest

    found = binomtest(correct, samples).proportion_ci(LEVEL, method="wilson")
    return [float(found.low), float(found.high)]


def mean_interval(values: Sequence[float]) -> list[float] | None:
    """Return Student's interval (95 %) of a mean; of a single value there is none."""
    if len(values) < 2:
        return None
    return around(float(np.mean(values)), float(np.std(values, ddof=1)), len(values))


def around(mean: float, deviation: float, count: int) -> list[float]:
    """Return Student's interval (95 %) of a mean of so many values with this deviation."""
    from scipy.stats import t

    half = float(t.ppf((1 + LEVEL) / 2, count - 1)) * deviation / math.sqrt(count)
    return [mean - half, mean + half]


@dataclass(frozen=True)
class Paired:
    """By how much one side is above the other in pairs: mean, interval, and how likely that is by chance."""

    pairs: int
    mean: float
    interval: list[float] | None
    p: float | None
    test: str


def paired(ours: Sequence[float], theirs: Sequence[float], few: bool) -> Paired:
    """Compare pairs: by Student's test where they are few (seeds), else by Wilcoxon's (clients)."""
    from scipy.stats import ttest_rel, wilcoxon

    gaps = [a - b for a, b in zip(ours, theirs, strict=True)]
    mean, interval = math.fsum(gaps) / len(gaps), mean_interval(gaps)
    name = "t" if few else "Wilcoxon"
    if len(gaps) < 2 or len(set(gaps)) == 1:  # no spread: no test says anything
        return Paired(len(gaps), mean, interval, 1.0 if len(gaps) > 1 and not any(gaps) else None, name)
    found = ttest_rel(ours, theirs) if few else wilcoxon(gaps)
    return Paired(len(gaps), mean, interval, float(found.pvalue), name)
