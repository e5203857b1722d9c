"""Data sets as they are read, before anyone is dealt a share; the same label has the same name in all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from intarsia.core import DataError


@dataclass(frozen=True)
class RawData:
    """Samples with labels; images are uint8 of shape (n, height, width, channels)."""

    x: NDArray[np.generic]
    y: NDArray[np.int64]
    labels: tuple[str, ...]
    """The name of each label."""
    train: NDArray[np.bool_]
    """Which samples belong to the published training part."""
    natural: NDArray[np.int64] | None = None
    """The writer, subject or picture that a sample comes from, where there is one."""
    overlapping: bool = False
    """Whether samples of one picture overlap: they must not lie on both sides of a split."""

    def __len__(self) -> int:
        return len(self.y)


@dataclass(frozen=True)
class Recording:
    """One stretch of a sensor's signal: samples x channels, with a label a sample (-1: unlabelled)."""

    signal: NDArray[np.float32]
    y: NDArray[np.int64]
    subject: int


@dataclass(frozen=True)
class Recordings:
    """Recordings of many subjects at one rate; windows are cut only after they are dealt out."""

    items: Sequence[Recording]
    labels: tuple[str, ...]
    rate: float
    """Samples a second."""


def names(text: str) -> tuple[str, ...]:
    """Return the names of labels, written with commas between them."""
    return tuple(name.strip() for name in text.split(","))


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


def common_name(name: str) -> str:
    """Return the name that a label goes by in every data set."""
    word = name.lower().replace(" ", "_")
    return SYNONYMS.get(word, word)


def renumber(labels: Sequence[str], wanted: Sequence[str], where: str) -> NDArray[np.int64]:
    """Return, for each label, its number among the wanted ones; -1: not wanted."""
    numbers = np.full(len(labels), -1, dtype=np.int64)
    for number, name in enumerate(wanted):
        exact = [i for i, label in enumerate(labels) if label == name]
        names = {common_name(name), *KINDS.get(common_name(name), ())}
        matching = exact or [i for i, label in enumerate(labels) if common_name(label) in names]
        if not matching:
            raise DataError(f"{where} has no label '{name}'; it has: {', '.join(labels)}")
        if (numbers[matching] >= 0).any():
            raise DataError(
                f"{where}: the labels '{wanted[numbers[matching].max()]}' and '{name}' mean the same"
            )
        numbers[matching] = number
    return numbers
