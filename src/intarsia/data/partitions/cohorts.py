"""Equal shares for cohorts that call or see things differently."""

from __future__ import annotations

from typing import Annotated, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from intarsia.core import part
from intarsia.data.partitions.base import Rows
from intarsia.data.partitions.iid import IID


@part
class Cohorts(IID):
    """Equal random shares for cohorts of clients that differ in something else; client i is in cohort i mod N."""

    number: Annotated[int, Field(ge=2)] = 2
    """How many cohorts."""

    def cohort(self, i: int) -> int:
        """Return the cohort of client i, counted from 0."""
        return i % self.number


@part
class PermutedLabels(Cohorts):
    """Cohorts that call things differently: what they see is alike, p(y|x) conflicts.

    Labels are put in a random circle, and cohort c says the label c places further on. With samples alike in
    number for every label, p(x) and p(y) are the same in all cohorts, and no label is right in two of them.
    """

    name: ClassVar[str] = "permuted_labels"
    summary: ClassVar[str] = "equal random shares; each cohort permutes the labels in its own way"

    def relabelled(self, y: Rows, client: int, classes: int, seed: int) -> Rows:
        """Return a client's labels as its cohort says them."""
        self._check_number("number", self.number, classes)
        circle = self._random(seed, "circle").permutation(classes)
        said = np.empty(classes, np.int64)
        said[circle] = np.roll(circle, -self.cohort(client))
        return said[y]


@part
class ShiftedInputs(Cohorts):
    """Cohorts that see things differently: p(x) is shifted, what it is called is the same.

    Images as they are; as negatives; mirrored along their diagonal; both.
    """

    name: ClassVar[str] = "shifted_inputs"
    summary: ClassVar[str] = "equal random shares; cohorts see negatives or mirrored images"

    number: Annotated[int, Field(ge=2, le=4)] = 2

    def shifted(self, x: NDArray[np.uint8], client: int) -> NDArray[np.uint8]:
        """Return a client's images, (n, height, width, channels) in bytes, as its cohort sees them."""
        cohort = self.cohort(client)
        if cohort & 2:
            x = x.swapaxes(1, 2)
        return 255 - x if cohort & 1 else x
