"""Pages that somebody looks at: drawn when their runs have changed, but only as often as that is cheap."""

from __future__ import annotations

import hashlib
import os
import time
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock

from intarsia.report.live.drawing import Draughtsman, Drawn, failed
from intarsia.report.live.folders import ODD, odd_in
from intarsia.runs import SETTINGS, SUMMARY, TABLES

SHARE = 0.1
"""How much of one core drawing may take, however many pages are looked at."""
MOST_PAGES = 24
"""How many pages are kept."""
Seen = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Shown:
    """A page as it was last drawn."""

    drawn: Drawn
    version: str
    at: float
    """When that was, by the wall clock."""


@dataclass
class _Kept:
    shown: Shown | None = None
    seen: Seen = ()
    """What the folders looked like when it was drawn."""
    lock: Lock = field(default_factory=Lock)


class Pages:
    """Draws pages of runs and keeps them."""

    def __init__(self) -> None:
        self._draughtsman = Draughtsman()
        self._kept: OrderedDict[tuple[Path, ...], _Kept] = OrderedDict()
        self._lock = Lock()
        self._next = 0.0

    def prepare(self) -> None:
        """Begin to import what drawing takes."""
        self._draughtsman.prepare()

    def get(self, folders: Sequence[Path]) -> Shown:
        """Return a page: at once as it was drawn last, if that was ever done; drawn now if it was not."""
        kept = self._of(folders)
        if kept.shown is not None:
            return kept.shown
        with kept.lock:
            return kept.shown or self._renew(kept, folders)

    def renew(self, folders: Sequence[Path]) -> bool:
        """Draw a page anew where its runs have changed, unless that is too early; return whether it is another one."""
        kept = self._of(folders)
        if time.monotonic() < self._next or seen(folders) == kept.seen:
            return False
        with kept.lock:
            before = kept.shown
            return before is None or self._renew(kept, folders).version != before.version

    def version(self, folders: Sequence[Path]) -> str:
        """Return the version of a page; nothing of one that nobody has asked for."""
        kept = self._kept.get(tuple(folders))
        return kept.shown.version if kept is not None and kept.shown is not None else ""

    def drawn_at(self, folders: Sequence[Path]) -> float:
        """Return when a page was last drawn; 0 where it was not."""
        kept = self._kept.get(tuple(folders))
        return kept.shown.at if kept is not None and kept.shown is not None else 0.0

    def _of(self, folders: Sequence[Path]) -> _Kept:
        with self._lock:
            kept = self._kept.setdefault(tuple(folders), _Kept())
            self._kept.move_to_end(tuple(folders))
            while len(self._kept) > MOST_PAGES:
                self._kept.popitem(last=False)
            return kept

    def _renew(self, kept: _Kept, folders: Sequence[Path]) -> Shown:
        looks = seen(folders)
        strange = [f"{path.name}/{odd}" for path in folders if (odd := odd_in(path))]
        drawn = failed(folders, f"{strange[0]} {ODD}") if strange else self._draughtsman.draw(folders)
        whole = f"{drawn.title}\0{drawn.lead}\0{drawn.body}".encode(errors="replace")
        kept.shown = Shown(drawn, hashlib.sha256(whole).hexdigest()[:16], time.time())
        kept.seen = looks
        self._next = time.monotonic() + drawn.seconds / SHARE
        return kept.shown


def seen(folders: Sequence[Path]) -> Seen:
    """Return what run folders look like: how long their files are, and when they were changed."""
    names = (*(f"{table}.jsonl" for table in TABLES), SETTINGS, SUMMARY, "population.json")
    return tuple(_stat(str(path / name)) for path in folders for name in names)


def _stat(path: str) -> tuple[int, int]:
    try:
        about = os.stat(path)
    except OSError:
        return (0, 0)
    return (about.st_mtime_ns, about.st_size)
