"""Equal random shares."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from intarsia.core import part
from intarsia.data.partitions.base import Partition, Rows, Shares


@part
class IID(Partition):
    """An equal random split; sizes differ by at most one (McMahan et al. 2017)."""

    name: ClassVar[str] = "iid"
    summary: ClassVar[str] = "equal random shares"

    def _deal(self, labels: Rows, clients: int, seed: int) -> Shares:
        return np.array_split(self._random(seed).permutation(len(labels)), clients)
