"""By writer or subject."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from intarsia.core import part
from intarsia.data.partitions.base import Partition, Rows, Shares


@part
class Natural(Partition):
    """By writer, subject or picture, in ascending order; of more than the clients, a random choice.

    Caldas et al. 2018 (LEAF). Marfoq et al. 2021 keep 15 % of FEMNIST's writers, which is 539 clients;
    which ones is open.
    """

    name: ClassVar[str] = "natural"
    summary: ClassVar[str] = "one client for each writer or subject"
    by_rule: ClassVar[bool] = False

    def deal(self, labels: Rows, clients: int, seed: int, natural: Rows | None = None) -> Shares:
        """Return the rows of each client: those of one writer or subject."""
        rows = len(self._checked(labels, clients))
        if natural is None:
            raise self._error("the data do not say whom a sample comes from: choose another partition")
        if np.shape(natural) != (rows,):
            raise self._error(
                f"the origins have shape {list(np.shape(natural))} for {rows} samples: give one a sample"
            )
        known = np.unique(natural)
        if clients > len(known):
            raise self._error(
                f"{clients} clients are more than the {len(known)} writers or subjects: lower clients to "
                f"at most {len(known)}"
            )
        chosen = np.sort(self._random(seed).choice(known, clients, replace=False))
        return [np.flatnonzero(natural == one) for one in chosen]
