"""Coarse, then fine labels by Dirichlet proportions."""

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
    weights_among,
)


@part
class Pachinko(Partition):
    """Pachinko allocation over coarse and fine labels (Li and McCallum 2006; Reddi et al. 2021).

    Each client has proportions over coarse labels, Dir(alpha), and over the fine labels of each, Dir(beta);
    its samples are drawn by them without replacement. A label without samples left is removed and the
    proportions are renormalised. Clients draw one after the other, so that the last ones get what is left.
    """

    name: ClassVar[str] = "pachinko"
    summary: ClassVar[str] = "coarse, then fine labels by Dirichlet proportions (CIFAR-100)"
    by_rule: ClassVar[bool] = False

    alpha: Concentration = 0.4
    """Concentration over coarse labels."""
    beta: Concentration = 10.0
    """Concentration over the fine labels of a coarse one."""
    coarse_of_fine: tuple[Annotated[int, Field(ge=0)], ...] = ()
    """The coarse label of each fine label."""
    per_client: Annotated[int, Field(ge=0)] = 0
    """How many samples a client gets; 0: as many as there are for each."""

    def _deal(self, labels: Rows, clients: int, seed: int) -> Shares:
        self._check_table(labels)
        each = self.per_client or len(labels) // clients
        if clients * each > len(labels):
            raise self._error(
                f"{clients} clients with {each} samples each need more than the {len(labels)} there are: "
                "lower clients or per_client"
            )
        coarse = np.asarray(self.coarse_of_fine)
        families = [np.flatnonzero(coarse == family) for family in np.unique(coarse)]
        left = np.bincount(labels, minlength=len(coarse))
        sizes = [
            self._draw(left, families, each, self._random(seed, "client", client))
            for client in range(clients)
        ]
        groups = [np.flatnonzero(labels == label) for label in range(len(coarse))]
        return dealt_by_sizes(groups, np.stack(sizes, axis=1), self._random(seed, "rows"))

    def _draw(self, left: Rows, families: Shares, each: int, random: np.random.Generator) -> Rows:
        """Return how many samples of each fine label a client draws, and take them from what is left."""
        stock = np.array([left[family].sum() for family in families])
        proportions = random.dirichlet(np.full(len(families), self.alpha))
        drawn = np.zeros_like(left)
        for family, number in zip(families, _take(stock, proportions, each, random), strict=True):
            within = random.dirichlet(np.full(len(family), self.beta))
            drawn[family] = _take(left[family], within, int(number), random)
        left -= drawn
        return drawn

    def _check_table(self, labels: Rows) -> None:
        if not self.coarse_of_fine:
            raise self._error("coarse_of_fine is empty: give the coarse label of each fine label")
        if labels.max() >= len(self.coarse_of_fine):
            raise self._error(
                f"coarse_of_fine has {len(self.coarse_of_fine)} entries and none for label {labels.max()}: "
                "give the coarse label of each fine label"
            )


def _take(stock: Rows, proportions: NDArray[np.float64], number: int, random: np.random.Generator) -> Rows:
    """Return how often each kind is drawn, where a kind that runs out is removed and others renormalised.

    The same as drawing one by one: a draw of a kind that has run out is repeated.
    """
    taken = np.zeros_like(stock)
    while number > taken.sum():
        drawn = random.multinomial(number - taken.sum(), weights_among(proportions, taken < stock))
        taken = np.minimum(taken + drawn, stock)
    return taken
