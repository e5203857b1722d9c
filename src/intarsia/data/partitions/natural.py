"""By writer or subject."""

from __future__ import annotations

from typing import Annotated, ClassVar

import numpy as np
from pydantic import Field

from intarsia.core import part
from intarsia.data.partitions.base import Partition, Rows, Shares


@part
class Natural(Partition):
    """By writer, subject or picture, in ascending order; of more than the clients, a random choice.

    Caldas et al. 2018 (LEAF). Marfoq et al. 2021 keep 15 % of FEMNIST's writers, which is 539 clients;
    which ones is open. `together`: so many of them, drawn by lot, are one client.
    """

    name: ClassVar[str] = "natural"
    summary: ClassVar[str] = "one client for each writer or subject"
    by_rule: ClassVar[bool] = False

    together: Annotated[int, Field(ge=1)] = 1
    """Writers or subjects of a client: where each has one sample of a label, a client of one of them was never trained
    on what it is tested on."""

    def deal(self, labels: Rows, clients: int, seed: int, natural: Rows | None = None) -> Shares:
        """Return the rows of each client: those of its writer or subject, or of some of them."""
        rows = len(self._checked(labels, clients))
        if natural is None:
            raise self._error("the data do not say whom a sample comes from: choose another partition")
        if np.shape(natural) != (rows,):
            raise self._error(
                f"the origins have shape {list(np.shape(natural))} for {rows} samples: give one a sample"
            )
        known = np.unique(natural)
        wanted, most = clients * self.together, len(known) // self.together
        if wanted > len(known):
            each = f" of {self.together} each" if self.together > 1 else ""
            raise self._error(
                f"{clients} clients{each} are more than the {len(known)} writers or subjects: lower clients to "
                f"at most {most}"
            )
        chosen = self._random(seed).choice(known, wanted, replace=False)
        if self.together == 1:
            chosen = np.sort(chosen)
        return [np.flatnonzero(np.isin(natural, own)) for own in chosen.reshape(clients, self.together)]
