"""How well an attack tells members from others: area under the curve, hits at a low rate of false alarms."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from intarsia.core import chance

Numbers = NDArray[np.float64]
FALSE_ALARMS = 0.01
RESAMPLES = 1000
LEVEL = 95.0


def auc(members: Sequence[float] | Numbers, others: Sequence[float] | Numbers) -> float:
    """Return how often a member scores above another sample, ties counted half."""
    inside, outside = np.asarray(members, float), np.sort(np.asarray(others, float))
    below = np.searchsorted(outside, inside, "left") + np.searchsorted(outside, inside, "right")
    return float(below.mean() / 2 / len(outside))


def hits_at(
    members: Sequence[float] | Numbers, others: Sequence[float] | Numbers, false_alarms: float = FALSE_ALARMS
) -> float:
    """Return the share of members above the lowest bar that at most this share of the others is above."""
    outside = np.sort(np.asarray(others, float))[::-1]
    allowed = int(np.floor(false_alarms * len(outside) + 1e-9))
    bar = outside[allowed] if allowed < len(outside) else -np.inf
    return float((np.asarray(members, float) > bar).mean())


@dataclass(frozen=True)
class Told:
    """What an attack tells: with intervals (95 %, resampled), and how many samples it was tried on."""

    auc: float
    auc_interval: list[float]
    hits: float
    """The share of members found while 1 % of the others pass for members."""
    hits_interval: list[float]
    members: int
    others: int

    def to_json(self) -> dict[str, Any]:
        """Return plain values, rounded."""
        return {
            key: [round(v, 4) for v in value] if isinstance(value, list) else round(value, 4)
            for key, value in vars(self).items()
        }


def told(members: Numbers, others: Numbers, seed: int, *purpose: str) -> Told:
    """Score an attack; members and others are drawn anew, apart, for the intervals."""
    random = chance.numpy_generator(seed, "audit", "resample", *purpose)
    drawn = []
    for _ in range(RESAMPLES):
        inside = members[random.integers(0, len(members), len(members))]
        outside = others[random.integers(0, len(others), len(others))]
        drawn.append((auc(inside, outside), hits_at(inside, outside)))
    low, high = _middle(drawn)
    return Told(
        auc(members, others),
        [low[0], high[0]],
        hits_at(members, others),
        [low[1], high[1]],
        len(members),
        len(others),
    )


def by_lot(members: int, others: int, seed: int) -> Told:
    """Return what scores by lot tell of so many samples: the mean of many lots, and where 95 % of them lie.

    A single lot would be outside of its interval in every twentieth audit, by chance alone.
    """
    random = chance.numpy_generator(seed, "audit", "lots")
    pairs = ((random.random(members), random.random(others)) for _ in range(RESAMPLES))
    drawn = [(auc(*pair), hits_at(*pair)) for pair in pairs]
    low, high = _middle(drawn)
    mean = np.mean(drawn, axis=0).tolist()
    return Told(mean[0], [low[0], high[0]], mean[1], [low[1], high[1]], members, others)


def _middle(drawn: Sequence[tuple[float, float]]) -> tuple[list[float], list[float]]:
    """Return between which numbers 95 % of those drawn lie, column by column."""
    ends = np.percentile(np.asarray(drawn), [(100 - LEVEL) / 2, (100 + LEVEL) / 2], axis=0)
    return ends[0].tolist(), ends[1].tolist()
