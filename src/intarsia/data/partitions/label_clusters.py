"""Clusters of labels by Dirichlet proportions."""

from __future__ import annotations

from typing import Annotated, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from intarsia.core import part
from intarsia.data.partitions.base import (
    Concentration,
    Count,
    Partition,
    Rows,
    Shares,
    dealt_by_sizes,
    weights_among,
)


@part
class LabelClusters(Partition):
    """Labels in clusters, each dealt by Dirichlet proportions over the clients (Marfoq et al. 2021, FedEM).

    The labels are shuffled into clusters of about equal size (3, 3, 4 for CIFAR-10), and each sample of a
    cluster goes to a client with the cluster's proportions. As many clusters as labels: Dir(alpha) for
    each label without balancing, FedEM's EMNIST. Open there: clients without samples; here everything is
    drawn again until each client has the minimum.
    """

    name: ClassVar[str] = "label_clusters"
    summary: ClassVar[str] = "clusters of labels by Dirichlet proportions (FedEM's CIFAR-10, EMNIST)"
    by_rule: ClassVar[bool] = False

    clusters: Count = 3
    """How many clusters labels are shuffled into."""
    alpha: Concentration = 0.4
    """How even shares are: the smaller, the more unlike clients are."""
    minimum: Annotated[int, Field(ge=0)] = 2
    """The fewest samples that a client may have; 2 leave one to train on and one to test."""

    def _deal(self, labels: Rows, clients: int, seed: int) -> Shares:
        present = np.unique(labels)
        if self.clusters > len(present):
            raise self._error(
                f"{len(present)} labels do not fill {self.clusters} clusters: lower clusters to at most "
                f"{len(present)}"
            )
        random = self._random(seed, "sizes")
        clusters = np.array_split(self._random(seed, "clusters").permutation(present), self.clusters)
        groups = [np.flatnonzero(np.isin(labels, cluster)) for cluster in clusters]
        sizes = self._redrawn(
            lambda: self._sizes(groups, clients, random), clients, self.minimum, len(labels), "alpha"
        )
        return dealt_by_sizes(groups, sizes, self._random(seed, "rows"))

    def _sizes(self, groups: Shares, clients: int, random: np.random.Generator) -> NDArray[np.int64]:
        everyone = np.ones(clients, np.bool_)
        proportions = random.dirichlet(np.full(clients, self.alpha), len(groups))
        return np.stack(
            [
                random.multinomial(len(rows), weights_among(own, everyone))
                for rows, own in zip(groups, proportions, strict=True)
            ]
        )
