"""Data sets as they are read, before anyone is dealt a share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


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
