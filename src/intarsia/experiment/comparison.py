"""Runs on disk, side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from intarsia.core import RunFolderError, SettingsError, in_words
from intarsia.core.text import flat
from intarsia.experiment.frames import pandas_for
from intarsia.experiment.opened import Run
from intarsia.experiment.run import open_run, path_of
from intarsia.judging.comparing import HEADS, Played, Table, grouped, table_of
from intarsia.methods import METHODS, OWN
from intarsia.runs import SETTINGS, SUMMARY

if TYPE_CHECKING:
    import pandas


def compare(*runs: Run | str | Path) -> pandas.DataFrame:
    """Compare runs: a frame with a row for each experiment, over its seeds, beside the first one.

    Give runs, run folders, or folders that hold some. Runs that differ in their seed alone are one experiment. Needs
    pandas: `pip install 'intarsia[pandas]'`.
    """
    frame = pandas_for("compare").DataFrame(comparison(found(runs)))
    return frame[[*HEADS, *(column for column in frame.columns if column not in HEADS)]]


def comparison(runs: Sequence[Run]) -> Table:
    """Return a row for each experiment among runs, as plain values."""
    return table_of(grouped([played(run) for run in runs]))


def found(runs: Sequence[Run | str | Path]) -> list[Run]:
    """Return the runs that are meant; folders that hold none are an error that names them."""
    if not runs:
        raise SettingsError("compare: name at least one run")
    opened: list[Run] = []
    missing = []
    for one in runs:
        if not isinstance(one, Run | str | Path):
            raise SettingsError(f"compare: give runs or run folders, not {in_words(one)}")
        own = [one] if isinstance(one, Run) else [open_run(path) for path in ended(path_of(one, "compare"))]
        opened += own
        missing += [] if own else [str(one)]
    if missing:
        raise RunFolderError(f"no run that has ended: {', '.join(missing)}")
    return opened


def ended(folder: Path) -> list[Path]:
    """Return this folder if it is a run's, else those in it that are, as far as they have ended."""
    return [path for path in runs_in(folder) if (path / SUMMARY).exists()]


def runs_in(folder: Path) -> list[Path]:
    """Return this folder if it is a run's, else those in it that are."""
    candidates = [folder] if (folder / SETTINGS).exists() else sorted(folder.glob("*/"))
    return [path for path in candidates if (path / SETTINGS).exists()]


def played(run: Run) -> Played:
    """Return what is compared of a run."""
    summary = run.summary
    name = summary["method"]
    title = METHODS[name].title if name in METHODS else str(name)
    measure = "accuracy" if summary["accuracy"] else "loss"
    return Played(str(run.path), title, flat(_settings(run)), summary, _by_client(run, measure))


def _settings(run: Run) -> Mapping[str, Any]:
    return run.settings.model_dump(mode="json")


def _by_client(run: Run, measure: str) -> dict[str, float]:
    """Return what every client's own model reached on test data after the last round that was evaluated."""
    rows = [row for row in run.metrics if row["split"] == "test" and row["stage"] == OWN]
    last = max((row["round"] for row in rows), default=0)
    return {row["client"]: row[measure] for row in rows if row["round"] == last and row[measure] is not None}
