"""A fixed number of labels a client."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from intarsia.core import part
from intarsia.data.partitions.base import Count, Partition, Rows, Shares


@part
class Labels(Partition):
    """#M=k: client i holds label i mod K and k-1 random others (Li et al. 2022, NIID-Bench).

    A label's samples are split equally among its holders, so that clients differ in size. Dealt with the
    same seed, training and test data give a client the same labels.
    """

    name: ClassVar[str] = "labels"
    summary: ClassVar[str] = "a fixed number of labels a client (NIID-Bench's #M=k)"

    per_client: Count
    """How many labels a client holds."""

    def _deal(self, labels: Rows, clients: int, seed: int) -> Shares:
        classes = self._classes(labels)
        self._check_number("per_client", self.per_client, classes)
        if clients < classes:
            raise self._error(
                f"{clients} clients are fewer than {classes} labels, so that some labels would have no "
                f"holder: ask for at least {classes} clients"
            )
        random = self._random(seed, "labels")
        held = [self._held(client % classes, classes, random) for client in range(clients)]
        return self._among_holders(labels, held, seed)

    def _held(self, first: int, classes: int, random: np.random.Generator) -> Rows:
        others = np.delete(np.arange(classes), first)
        return np.append(random.choice(others, self.per_client - 1, replace=False), first)
