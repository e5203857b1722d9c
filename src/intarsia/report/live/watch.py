"""The runs that are watched, as they stand now, and who is told when that changes."""

from __future__ import annotations

import secrets
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Condition, Event, Lock, Thread

from intarsia.report.live.folders import Folders, Found
from intarsia.report.live.following import RUNNING, Follower, Standing
from intarsia.report.live.pages import Pages

TICK = 1.0
"""How many seconds lie between two looks at runs that go on."""
REST = 5.0
"""And at runs that do not."""
SCAN = 2.0
"""And at the folders, for new ones; more where looking takes long."""
DEAR = 20
"""Looking for folders takes at most one part in so many of the time."""
BUDGET = 0.25
"""For how many seconds lines are read at once; what is left comes at the next look."""
Keys = tuple[str, ...]


@dataclass
class News:
    """What has changed since a number: standings, runs that are gone, and the page's version."""

    number: int
    runs: dict[str, Standing] = field(default_factory=dict)
    gone: list[str] = field(default_factory=list)
    page: str = ""


class Watch:
    """Looks at run folders as long as somebody is interested."""

    def __init__(self, folders: Folders) -> None:
        self.folders = folders
        self.pages = Pages()
        self.boot = secrets.token_hex(4)
        """Which server this is: numbers of another one mean nothing."""
        self.number = 1
        self._followers: dict[str, Follower] = {}
        self._told: dict[str, tuple[int, Standing]] = {}
        self._gone: dict[str, int] = {}
        self._looked: dict[str, float] = {}
        self._scan = 0.0
        self._last = 0.0
        self._looking = Lock()
        self._news = Condition()
        self._readers: Counter[Keys] = Counter()
        self._end = Event()
        self._threads = [
            Thread(target=work, name=f"intarsia-{name}", daemon=True)
            for name, work in {"watching": self._watch, "drawing": self._keep_drawing}.items()
        ]

    def start(self) -> None:
        """Begin to look."""
        self.pages.prepare()
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Look no more; whoever waits for news goes home."""
        self._end.set()
        with self._news:
            self._news.notify_all()
        for thread in self._threads:
            thread.join(2)

    @property
    def ended(self) -> bool:
        """Whether nobody looks any more."""
        return self._end.is_set()

    def find(self, key: str) -> Found | None:
        """Return a run folder by its key; None where there is no such run."""
        self.look()
        follower = self._followers.get(key)
        return follower.found if follower else None

    def standings(self) -> list[Standing]:
        """Return how all runs stand: those that go on first, then the newest."""
        self.look()
        with self._news:
            found = [standing for _, standing in self._told.values()]
        return sorted(found, key=lambda own: (own["state"] != RUNNING, -own["changed"], own["name"]))

    def look(self) -> None:
        """Look at the runs, unless that was done a moment ago."""
        with self._looking:
            if time.monotonic() - self._last < TICK / 2:
                return
            self._find()
            changed = self._follow(time.monotonic() + BUDGET)
            self._last = time.monotonic()
        if changed:
            self._tell(changed)

    def _find(self) -> None:
        start = time.monotonic()
        if start < self._scan:
            return
        found = self.folders.runs()
        for key in self._followers.keys() - found.keys():
            del self._followers[key]
        for key, own in found.items():
            if key not in self._followers:
                self._followers[key] = Follower(own)
        self._scan = time.monotonic() + max(SCAN, DEAR * (time.monotonic() - start))

    def _follow(self, until: float) -> dict[str, Standing | None]:
        """Return what has changed: how a run stands now, or None of one that is gone."""
        changed: dict[str, Standing | None] = dict.fromkeys(self._told.keys() - self._followers.keys())
        for key, follower in sorted(self._followers.items(), key=lambda own: self._rank(own[1])):
            now = time.monotonic()
            if self._rests(key, follower, now) or (now > until and follower.standing):
                continue
            self._looked[key] = now
            before = follower.standing
            if follower.refresh(until) != before:
                changed[key] = follower.standing
        return changed

    @staticmethod
    def _rank(follower: Follower) -> int:
        return 0 if not follower.standing else 1 if follower.standing["state"] == RUNNING else 2

    def _rests(self, key: str, follower: Follower, now: float) -> bool:
        resting = follower.whole and follower.standing and follower.standing["state"] != RUNNING
        return bool(resting) and now - self._looked.get(key, 0.0) < REST

    def _tell(self, changed: dict[str, Standing | None]) -> None:
        with self._news:
            self.number += 1
            for key, standing in changed.items():
                if standing is None:
                    self._told.pop(key, None)
                    self._gone[key] = self.number
                else:
                    self._told[key] = (self.number, standing)
                    self._gone.pop(key, None)
            self._news.notify_all()

    @contextmanager
    def reader(self, keys: Keys) -> Iterator[None]:
        """Let somebody be told of runs: as long as there is one, they are looked at, and their page is drawn."""
        with self._news:
            self._readers[keys] += 1
            self._news.notify_all()
        try:
            yield
        finally:
            with self._news:
                self._readers[keys] -= 1
                self._readers += Counter()

    def news(self, keys: Keys, since: int, page: str, patience: float) -> News:
        """Wait for what is newer than a number, or another page, of some runs (none: of all); nothing after a while."""
        end = time.monotonic() + patience
        folders = self.folders_of(keys)
        with self._news:
            while True:
                found = self._newer(keys, since)
                found.page = self.pages.version(folders) if folders else ""
                if found.runs or found.gone or found.page != page or self.ended:
                    return found
                left = end - time.monotonic()
                if left <= 0:
                    return found
                self._news.wait(left)

    def _newer(self, keys: Keys, since: int) -> News:
        told = {key: own for key, own in self._told.items() if not keys or key in keys}
        runs = {key: standing for key, (number, standing) in told.items() if number > since}
        gone = [key for key, number in self._gone.items() if number > since and (not keys or key in keys)]
        return News(self.number, runs, gone)

    def folders_of(self, keys: Keys) -> list[Path]:
        """Return the folders of runs that are still there."""
        return [own.found.path for key in keys if (own := self._followers.get(key)) is not None]

    def _watch(self) -> None:
        while not self._end.wait(TICK):
            with self._news:
                while not self._readers and not self.ended:
                    self._news.wait()
            if not self.ended:
                self.look()

    def _keep_drawing(self) -> None:
        """Draw pages that somebody looks at; one that is drawn is news."""
        while not self._end.wait(TICK):
            for folders in sorted(map(self.folders_of, self._wanted()), key=self.pages.drawn_at):
                if folders and self.pages.renew(folders):
                    with self._news:
                        self._news.notify_all()

    def _wanted(self) -> Sequence[Keys]:
        with self._news:
            while not any(self._readers) and not self.ended:
                self._news.wait()
            return [keys for keys in self._readers if keys]
