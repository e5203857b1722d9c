"""Named distributions that a quantity of a fleet's devices is drawn from: once a client, by its name and the seed."""

from __future__ import annotations

import math
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from intarsia.core import SettingsError, part

Positive = Annotated[float, Field(gt=0)]
NotNegative = Annotated[float, Field(ge=0)]


@part
class LogNormal:
    """Around a median; the logarithm has this deviation (speeds and bandwidths of phones look like this)."""

    name: Literal["lognormal"] = "lognormal"
    median: Positive = 1.0
    sigma: NotNegative = 0.5

    def draw(self, random: np.random.Generator) -> float:
        """Return one client's quantity."""
        try:
            return float(self.median * math.exp(self.sigma * random.standard_normal()))
        except OverflowError:
            return math.inf  # which no device has


@part
class Uniform:
    """Any number between two."""

    name: Literal["uniform"] = "uniform"
    low: float = 0.0
    high: float = 1.0

    def __post_init__(self) -> None:
        """Refuse ends between which there is no number."""
        if not (self.low <= self.high and math.isfinite(self.high - self.low)):
            raise SettingsError(
                f"a distribution 'uniform' goes from {self.low:g} to {self.high:g}: give numbers, the lower one as low"
            )

    def draw(self, random: np.random.Generator) -> float:
        """Return one client's quantity."""
        return float(random.uniform(self.low, self.high))


@part
class Exponential:
    """Mostly little, sometimes much."""

    name: Literal["exponential"] = "exponential"
    mean: Positive = 1.0

    def draw(self, random: np.random.Generator) -> float:
        """Return one client's quantity."""
        return float(random.exponential(self.mean))


@part
class Pareto:
    """At least `low`, with a heavy tail: the smaller alpha, the heavier."""

    name: Literal["pareto"] = "pareto"
    low: Positive = 1.0
    alpha: Positive = 2.0

    def draw(self, random: np.random.Generator) -> float:
        """Return one client's quantity."""
        return float(self.low * (1 + random.pareto(self.alpha)))


@part
class OneOf:
    """One of some numbers, each as likely as its share (none given: all alike)."""

    name: Literal["one of"] = "one of"
    values: Annotated[tuple[float, ...], Field(min_length=1)] = (1.0,)
    shares: tuple[NotNegative, ...] = ()

    def __post_init__(self) -> None:
        """Refuse shares that do not fit the values."""
        if self.shares and (len(self.shares) != len(self.values) or not 0 < sum(self.shares) < math.inf):
            raise SettingsError(
                f"a distribution 'one of' has {len(self.values)} values and {len(self.shares)} shares: give one "
                "share a value, finite and not all of them 0, or none"
            )

    def draw(self, random: np.random.Generator) -> float:
        """Return one client's quantity."""
        shares = np.asarray(self.shares) / sum(self.shares) if self.shares else None
        return float(random.choice(np.asarray(self.values), p=shares))


Drawn = Annotated[LogNormal | Uniform | Exponential | Pareto | OneOf, Field(discriminator="name")]
"""A distribution: a table with its name and its own settings."""
