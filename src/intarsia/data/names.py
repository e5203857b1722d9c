"""Labels by name: the same thing has the same name in every data set."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from intarsia.core import DataError

SYNONYMS = {
    "automobile": "car",
    "walking_upstairs": "upstairs",
    "walking_downstairs": "downstairs",
    "climbingup": "upstairs",
    "climbingdown": "downstairs",
    "laying": "lying",
}
KINDS = {"stairs": ("upstairs", "downstairs")}
"""Names that stand for several labels where a data set tells them apart."""


def plain(name: str) -> str:
    """Return the name that a label goes by in every data set."""
    word = name.lower().replace(" ", "_")
    return SYNONYMS.get(word, word)


def renumber(labels: Sequence[str], wanted: Sequence[str], where: str) -> NDArray[np.int64]:
    """Return, for each label, its number among the wanted ones; -1: not wanted."""
    numbers = np.full(len(labels), -1, dtype=np.int64)
    for number, name in enumerate(wanted):
        exact = [i for i, label in enumerate(labels) if label == name]
        names = {plain(name), *KINDS.get(plain(name), ())}
        matching = exact or [i for i, label in enumerate(labels) if plain(label) in names]
        if not matching:
            raise DataError(f"{where} has no label '{name}'; it has: {', '.join(labels)}")
        if (numbers[matching] >= 0).any():
            raise DataError(
                f"{where}: the labels '{wanted[numbers[matching].max()]}' and '{name}' mean the same"
            )
        numbers[matching] = number
    return numbers
