"""The published experiments as settings, with the published figures beside them."""

from intarsia.core import SettingsError, suggest
from intarsia.papers.adapters import studies as adapters
from intarsia.papers.fedmn import studies as fedmn
from intarsia.papers.modfl import studies as modfl
from intarsia.papers.pfedclub import figures as pfedclub_figures
from intarsia.papers.pfedclub import tables as pfedclub
from intarsia.papers.runner import Results, carry_out
from intarsia.papers.study import Cell, Scale, Study, Trial

STUDIES: dict[str, Study] = {
    study.name: study
    for study in (
        *modfl.STUDIES,
        *adapters.STUDIES,
        *fedmn.STUDIES,
        *pfedclub.STUDIES,
        *pfedclub_figures.STUDIES,
    )
}
"""Every study there is, by name."""


def get(name: str) -> Study:
    """Return a study by its name."""
    if name not in STUDIES:
        raise SettingsError(f"there is no study '{name}'{suggest(name, STUDIES)}")
    return STUDIES[name]


__all__ = ["STUDIES", "Cell", "Results", "Scale", "Study", "Trial", "carry_out", "get"]
