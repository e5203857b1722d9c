"""A section: what is shown of one run because of what its method recorded."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Self

from intarsia.experiment.run_record import RunRecord

Part = tuple[str, str]
"""A heading of a page, and what stands below it as HTML."""


class Section(ABC):
    """What a run's tables (notes, groups) have to show; a run that noted nothing of the kind has no such section."""

    @classmethod
    @abstractmethod
    def read(cls, run: RunRecord) -> Self | None:
        """Return the section of a run; None where it has nothing of the kind."""

    @abstractmethod
    def parts(self, label: str) -> Sequence[Part]:
        """Return what a page shows under the run's label."""

    def links(self) -> Mapping[str, Sequence[tuple[str, str]]]:
        """Return which blocks of a client's own model lead to which, by client, where they are no plain chain."""
        return {}

    def teachers(self) -> Mapping[str, Sequence[tuple[str, int]]]:
        """Return the last model that a client learned from, where that was put together for it: whose, which block."""
        return {}

    def unused(self) -> Mapping[int, Mapping[str, Collection[str]]]:
        """Return which of their blocks clients' own models leave out, by round and client."""
        return {}

    def pictures(self, title: str, folder: Path) -> list[Path]:
        """Draw PNG pictures into a folder; return the files."""
        return []
