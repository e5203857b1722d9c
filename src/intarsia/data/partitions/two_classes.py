"""Two random labels a client."""

from __future__ import annotations

import math
from typing import ClassVar

import numpy as np

from intarsia.core import part
from intarsia.data.partitions.base import Count, Partition, Rows, Shares


@part
class TwoClasses(Partition):
    """Every client holds two random labels, and every label has about the same number of holders.

    Wang et al. 2024 (pFedClub): "each client randomly holds data belonging to two classes". Open there: how
    labels are drawn and samples divided; here holders of a label differ by at most one in number, and its
    samples are divided equally among them. Dealt with the same seed, training and test data give a client
    the same labels.
    """

    name: ClassVar[str] = "two_classes"
    summary: ClassVar[str] = "two random labels a client, labels equally often (pFedClub)"

    per_client: Count = 2
    """How many labels a client holds."""

    def _deal(self, labels: Rows, clients: int, seed: int) -> Shares:
        classes = self._classes(labels)
        self._check_number("per_client", self.per_client, classes)
        if clients * self.per_client < classes:
            raise self._error(
                f"{clients} clients with {self.per_client} labels each cannot hold all {classes} labels: "
                f"ask for at least {math.ceil(classes / self.per_client)} clients"
            )
        return self._among_holders(labels, self._held(classes, clients, self._random(seed, "labels")), seed)

    def _held(self, classes: int, clients: int, random: np.random.Generator) -> Shares:
        """Draw the labels of each client from what is left of equally many slots a label."""
        slots, extra = divmod(clients * self.per_client, classes)
        left = np.full(classes, slots)
        left[random.permutation(classes)[:extra]] += 1
        held = []
        for clients_left in range(clients, 0, -1):
            needed = np.flatnonzero(left == clients_left)  # every client from here on must hold these
            free = np.flatnonzero((left > 0) & (left < clients_left))
            number = self.per_client - len(needed)
            weights = left[free] / max(1, left[free].sum())
            drawn = random.choice(free, number, replace=False, p=weights) if number else free[:0]
            own = np.append(needed, drawn)
            left[own] -= 1
            held.append(own)
        return [held[client] for client in random.permutation(clients)]
