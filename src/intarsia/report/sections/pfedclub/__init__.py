"""pFedClub and pFedHR: teachers that a server made of clients' blocks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from intarsia.experiment.run_record import RunRecord
from intarsia.report.pictures import draw_all
from intarsia.report.sections.base import Part, Section
from intarsia.report.sections.pfedclub.page import parts
from intarsia.report.sections.pfedclub.pictures import (
    groups_picture,
    phi_picture,
    scores_picture,
    strips_picture,
)
from intarsia.report.sections.pfedclub.teachers import Reassembly, read_reassembly


@dataclass(frozen=True)
class Teachers(Section):
    """Functional groups, teachers, their sizes and scores of a run whose server noted them."""

    reassembly: Reassembly

    @classmethod
    def read(cls, run: RunRecord) -> Self | None:
        """Return the section of a run that has teachers."""
        found = read_reassembly(run)
        return None if found is None else cls(found)

    def parts(self, label: str) -> list[Part]:
        """Return what a page shows."""
        return parts(label, self.reassembly)

    def teachers(self) -> dict[str, Sequence[tuple[str, int]]]:
        """Return the blocks of every client's last teacher: whose they are, and which of theirs (from 1)."""
        return self.reassembly.chains

    def pictures(self, title: str, folder: Path) -> list[Path]:
        """Draw functional groups, teachers, phi and, where they were noted, teachers' scores."""
        draw = {"groups": groups_picture, "teachers": strips_picture, "phi": phi_picture}
        if self.reassembly.scored:
            draw["knowledge"] = scores_picture
        return draw_all(draw, self.reassembly, title, folder)
