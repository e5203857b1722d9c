"""The published experiments as settings, with the published figures beside them.

A folder a paper, each laid out alike: `published` has what the paper says, `studies` (and files beside it, where they
are many) what is run. A study is found by being there: a function of a scale and a seed, made one by `study`.
"""

import importlib
import pkgutil

from intarsia.core import SettingsError, suggest
from intarsia.papers.runner import Results, carry_out
from intarsia.papers.study import Cell, Scale, Study, StudyRun

STUDIES: dict[str, Study] = {
    value.name: value
    for found in pkgutil.walk_packages(__path__, f"{__name__}.")
    for value in vars(importlib.import_module(found.name)).values()
    if isinstance(value, Study)
}
"""Every study there is, by name."""


def get(name: str) -> Study:
    """Return a study by its name."""
    if name not in STUDIES:
        raise SettingsError(f"there is no study '{name}'{suggest(name, STUDIES)}")
    return STUDIES[name]


__all__ = ["STUDIES", "Cell", "Results", "Scale", "Study", "StudyRun", "carry_out", "get"]
