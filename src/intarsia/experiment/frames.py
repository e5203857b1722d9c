"""Tables of runs as pandas frames."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from intarsia.core import IntarsiaError, SettingsError, suggest
from intarsia.core.text import flat
from intarsia.runs import TABLES, RunFolder
from intarsia.runs.tables import ALWAYS

if TYPE_CHECKING:
    import pandas

CLIENTS = "clients"
"""The table of who holds what, which is no file of lines."""
FRAMES = (*TABLES, CLIENTS)
COUNTS = ("tally.", "usual_tally.")
"""What judged clients counted, from which their metrics follow: in `Run.judged`, and in no frame."""


def frame_of(folder: RunFolder, table: str) -> pandas.DataFrame:
    """Return a table of a run as a frame; what is a table in a row becomes columns with dotted names."""
    if table not in FRAMES:
        there = f" (there are: {', '.join(FRAMES)})"
        raise SettingsError(f"frame: a run has no table '{table}'{suggest(table, FRAMES)}{there}")
    made = pandas_for("frame").DataFrame([_row(row) for row in _rows(folder, table)])
    return made if len(made.columns) else made.reindex(columns=sorted(ALWAYS.get(table, ("client",))))


def _rows(folder: RunFolder, table: str) -> Iterable[Mapping[str, Any]]:
    if table != CLIENTS:
        return folder.rows(table)
    return [{"client": name, **about} for name, about in folder.population().get("clients", {}).items()]


def _row(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in flat(row).items() if not name.startswith(COUNTS)}


def pandas_for(what: str) -> Any:
    """Return pandas; if it is not there, say who wanted it and how to get it."""
    try:
        import pandas
    except ImportError as error:
        raise IntarsiaError(
            f"{what} gives a pandas table, and pandas is not installed: pip install 'intarsia[pandas]'"
        ) from error
    return pandas
