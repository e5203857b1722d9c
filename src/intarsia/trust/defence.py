"""The settings of a federation's defence: what bounds clients' updates and claims, and who is left out."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from statistics import median
from typing import Annotated, Literal

from pydantic import Field

from intarsia.core import part

USUAL_SAMPLES = 3
"""How many times the median of samples a client counts at most, with `max_samples = "auto"`."""


@part
class Defence:
    """What bounds clients' updates and claims, and when a client is left out; all off by default."""

    norm: Literal["auto"] | Annotated[float, Field(ge=0)] = 0.0
    """How far a client's update may go, over all of its blocks: what goes further is scaled back (0: no bound; auto:
    `norm_times` the median norm of clients, of this exchange and the last ones)."""
    norm_times: Annotated[float, Field(gt=0)] = 2.0
    """How many times the median norm `auto` allows."""
    max_samples: Literal["auto"] | Annotated[int, Field(ge=0)] = 0
    """How many samples a client counts at most, whatever it says to have (0: no bound; auto: three times
    the median)."""
    far: Annotated[float, Field(ge=0)] = 0.0
    """A client gets a mark if its update of an address is so many times further from what was merged than the median of
    the holders (0: nobody looks)."""
    leave_out: Annotated[int, Field(ge=0)] = 0
    """A client with so many marks is left out for the rest of the run (0: nobody is). A mark comes with every exchange
    in which its update was refused, scaled back or far; one without any takes a mark away. Never more than half of all
    clients are left out."""

    @property
    def on(self) -> bool:
        """Whether single updates must be looked at."""
        return bool(self.norm or self.far or self.leave_out)

    def most_samples(self, samples: Collection[int]) -> int:
        """Return how many samples a client counts at most, of clients that say to have so many (0: no bound)."""
        if self.max_samples != "auto":
            return self.max_samples
        return max(1, round(USUAL_SAMPLES * median(samples)))

    def bound(self, norms: Sequence[float], before: Sequence[float]) -> float:
        """Return how far updates with these norms may go, after exchanges with these medians (0: anywhere)."""
        if self.norm != "auto":
            return self.norm
        return self.norm_times * median([*before, median(norms)])
