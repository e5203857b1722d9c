"""Each label by Dirichlet proportions."""

from __future__ import annotations

from typing import Annotated, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from intarsia.core import part
from intarsia.data.partitions.base import (
    Concentration,
    Partition,
    Rows,
    Shares,
    dealt_by_sizes,
    sizes_in_proportion,
    weights_among,
)


@part
class Dirichlet(Partition):
    """Dir(beta): each label is dealt by proportions drawn from a Dirichlet distribution.

    Li et al. 2022 (NIID-Bench), distribution-based label imbalance. Labels are dealt in ascending order,
    a client that already has n/N samples gets no more, and everything is drawn again until each client
    has the minimum. The paper's text leaves both out; its code has them, with 10 as the minimum.
    """

    name: ClassVar[str] = "dirichlet"
    summary: ClassVar[str] = "each label by Dirichlet proportions, with balancing (NIID-Bench's Dir)"
    by_rule: ClassVar[bool] = False

    beta: Concentration = 0.5
    """How even shares are: the smaller, the more unlike clients are."""
    minimum: Annotated[int, Field(ge=0)] = 10
    """The fewest samples that a client may have."""

    def _deal(self, labels: Rows, clients: int, seed: int) -> Shares:
        counts = np.bincount(labels)
        random = self._random(seed, "sizes")
        sizes = self._redrawn(
            lambda: self._sizes(counts, clients, random), clients, self.minimum, len(labels), "beta"
        )
        groups = [np.flatnonzero(labels == label) for label in range(len(counts))]
        return dealt_by_sizes(groups, sizes, self._random(seed, "rows"))

    def _sizes(self, counts: Rows, clients: int, random: np.random.Generator) -> NDArray[np.int64]:
        held = np.zeros(clients, np.int64)
        sizes = np.zeros((len(counts), clients), np.int64)
        proportions = random.dirichlet(np.full(clients, self.beta), len(counts))
        for label, samples in enumerate(counts):
            if samples:
                weights = weights_among(proportions[label], held * clients < counts.sum())
                sizes[label] = sizes_in_proportion(int(samples), weights)
                held += sizes[label]
        return sizes
