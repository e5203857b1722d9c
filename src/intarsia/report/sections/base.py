"""A section: what is shown of one run because of what its method recorded."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar, Self

from intarsia.experiment import Run

Part = tuple[str, str]
"""A heading of a page, and what stands below it as HTML."""


class Section(ABC):
    """What a run's tables (notes, groups) have to show; a run that noted nothing of the kind has no such section."""

    drawn: ClassVar[str] = ""
    """What its pictures are of, in words; empty: there are none."""

    @classmethod
    @abstractmethod
    def read(cls, run: Run) -> Self | None:
        """Return the section of a run; None where it has nothing of the kind."""

    @abstractmethod
    def parts(self, label: str) -> Sequence[Part]:
        """Return what a page shows under the run's label."""

    def pictures(self, title: str, folder: Path) -> list[Path]:
        """Draw PNG pictures into a folder; return the files."""
        return []
