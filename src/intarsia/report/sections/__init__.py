"""What pages and pictures show of methods beyond accuracy and bytes: a file or folder a method, found by being here.

Folders are laid out alike: what is read from a run, `page` (plotly) and `pictures` (PNG).
"""

from __future__ import annotations

import importlib
import pkgutil

from intarsia.experiment.run_record import RunRecord
from intarsia.report.sections.base import Part, Section

for _found in pkgutil.iter_modules(__path__, f"{__name__}."):
    importlib.import_module(_found.name)
SECTIONS: tuple[type[Section], ...] = tuple(Section.__subclasses__())
"""Every kind of section there is."""


def sections_of(run: RunRecord) -> list[Section]:
    """Return what a run has to show beyond accuracy and bytes."""
    return [section for kind in SECTIONS if (section := kind.read(run)) is not None]


__all__ = ["SECTIONS", "Part", "Section", "sections_of"]
