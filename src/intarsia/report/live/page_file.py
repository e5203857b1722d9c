"""The page in a run's own folder, written anew every few rounds; and a line about what goes on in the present one."""

from __future__ import annotations

import json
import time
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from intarsia.core import IntarsiaError, warn
from intarsia.core.files import write_unsynced
from intarsia.engines import Reply
from intarsia.experiment import Run, open_run
from intarsia.federation import Observer, RoundReport
from intarsia.report.page import page
from intarsia.report.run_view import RunView, views_of
from intarsia.runs import TABLES

PAGE, NOW = "page.html", "now.json"
SHARE = 0.02
"""How much of a run's time its pages may take, but for the one at its end."""
FIRST = 0.3
"""How many seconds the first page is taken to need."""
MOST_BYTES = 128 << 20
"""How large the tables of a run may be that draws its own page: all of them are read at once."""
HURRY = 1.0
"""A run that was stopped still draws its last page if that takes no more seconds."""
EVERY = 0.5
"""How many seconds lie between two lines about what goes on."""
MOST_NAMED = 1000


def write_page(
    *runs: Run | str | Path, out: str | Path | None = None, title: str = "", lead: str = ""
) -> Path:
    """Write one HTML page about runs and return its path; they may still be going on.

    Give runs or run folders. `out` is the file to write: of one run `page.html` in its folder by default, of several
    `compare.html` here.
    """
    if not runs:
        raise IntarsiaError("page: name at least one run, or a run folder")
    opened = [one if isinstance(one, Run) else open_run(one) for one in runs]
    views = views_of(opened)
    alone = opened[0] if len(opened) == 1 else None
    path = Path(out) if out is not None else alone.path / PAGE if alone else Path("compare.html")
    text = page(title or title_of(views), lead or lead_of(views), views)
    write_unsynced(path, text.encode(errors="replace"))
    return path


def title_of(views: Sequence[RunView]) -> str:
    """Return what a page of runs is called."""
    return f"{views[0].label}, {views[0].run.path.resolve().name}" if len(views) == 1 else "Comparison"


def lead_of(views: Sequence[RunView]) -> str:
    """Return how far runs have come, for the head of their page."""
    if len(views) > 1:
        return f"{len(views)} runs"
    own = views[0]
    return f"{own.summary['clients']} clients, {own.run.done} of {own.run.settings.rounds} rounds"


class PageFile(Observer):
    """Keeps `page.html` in a run's folder up to date, and hands on all that it is told.

    Within `with`: `with PageFile(out) as page: intarsia.run(..., out=out, observer=page)`. Pages take at most a
    fiftieth of the run's time, so that a long run has one every few rounds and a short one only that of its end. What
    goes wrong with a page is a warning, and never stops the run.
    """

    def __init__(self, folder: str | Path, told: Observer | None = None, draws: bool = True) -> None:
        self.folder = Path(folder)
        self._told = told or Observer()
        self._draws = draws
        self._begun = time.monotonic()
        self._spent = 0.0
        self._last = FIRST
        self._beside = ""
        self._now: dict[str, Any] = {}
        self._written = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with suppress(OSError):
            (self.folder / NOW).unlink(missing_ok=True)
        if self._draws and (self.folder / "seconds.jsonl").exists() and (kind is None or self._last < HURRY):
            self._draw()

    def playing(self, what: str) -> None:
        """Hand it on; of what is played beside the run, no page is drawn."""
        self._beside = what
        self._told.playing(what)

    def opened(self, folder: Path) -> None:
        """Hand it on."""
        self._told.opened(folder)

    def started(self, rounds: int, done: int, clients: int) -> None:
        """Hand it on."""
        self._told.started(rounds, done, clients)

    def exchange_started(self, round: int, name: str, clients: int) -> None:
        """Note that tasks go out."""
        self._told.exchange_started(round, name, clients)
        about = {"round": round, "exchange": name, "asked": clients, "since": int(time.time())}
        self._now = {"playing": self._beside, **about, "count": 0, "answered": []}
        self._note()

    def replied(self, reply: Reply) -> None:
        """Note who has answered."""
        self._told.replied(reply)
        if self._now:
            self._now["count"] += 1
            if len(self._now["answered"]) < MOST_NAMED:
                self._now["answered"].append(reply.client)
            self._note()

    def round_done(self, report: RoundReport) -> None:
        """Draw the page, if the run has the time for it."""
        self._told.round_done(report)
        if self._beside.startswith("baseline") or report.round >= report.rounds:
            return
        if self._draws and self._spent + self._last <= SHARE * (time.monotonic() - self._begun):
            self._draw()

    def wants_stop(self) -> bool:
        """Ask whoever is told."""
        return self._told.wants_stop()

    def ended(self, summary: Mapping[str, Any]) -> None:
        """Hand it on."""
        self._told.ended(summary)

    def _note(self) -> None:
        """Write what goes on, twice a second at most, and when all have answered; nothing of a run depends on it."""
        if time.monotonic() - self._written < EVERY and self._now["count"] < self._now["asked"]:
            return
        self._written = time.monotonic()
        with suppress(OSError):
            write_unsynced(self.folder / NOW, json.dumps(self._now).encode())

    def _draw(self) -> None:
        start = time.monotonic()
        self._draws = draw_page(self.folder)
        self._last = time.monotonic() - start
        self._spent += self._last


def draw_page(folder: Path) -> bool:
    """Write the page of a run into its folder; return whether that worked. If not, a warning says why."""
    try:
        if too_large(folder):
            raise IntarsiaError(f"its tables are larger than {MOST_BYTES >> 20} MB")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            write_page(folder)
    except Exception as error:  # noqa: BLE001 - a page is worth no run
        warn(
            f"{folder / PAGE} is not drawn any more ({type(error).__name__}: {error}); the run is not touched by "
            f"that. To draw it later: intarsia compare {folder}"
        )
        return False
    return True


def too_large(folder: Path) -> bool:
    """Return whether the tables of a run are too large to be read beside it."""
    files = [folder / f"{table}.jsonl" for table in TABLES]
    return sum(file.stat().st_size for file in files if file.exists()) > MOST_BYTES
