"""Groups of clients with cyclic windows of labels."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from intarsia.core import part
from intarsia.data.partitions.base import Count, Partition, Rows, Shares


@part
class Windows(Partition):
    """Groups with cyclic windows of labels {j, ..., j+P-1}; client i is in group i mod K.

    Liang et al. 2022 (ModFL). There are as many groups as labels, or one where a group has all of them.
    Each label's samples are divided equally among its holders; the remainder is left out. The paper says
    that groups have unlike sets of P labels, and that clients have equally many samples, in all and of each
    of their labels; windows and division are recovered from its tables.
    """

    name: ClassVar[str] = "windows"
    summary: ClassVar[str] = "groups of clients with cyclic windows of labels (ModFL)"

    labels_per_group: Count
    """How many labels a group has: P."""

    def group(self, i: int, classes: int) -> int:
        """Return the group of client i, counted from 0."""
        return 0 if self.labels_per_group == classes else i % classes

    def _deal(self, labels: Rows, clients: int, seed: int) -> Shares:
        classes = self._classes(labels)
        self._check_number("labels_per_group", self.labels_per_group, classes)
        window = np.arange(self.labels_per_group)
        held = [(self.group(client, classes) + window) % classes for client in range(clients)]
        return self._among_holders(labels, held, seed, exact=True)
