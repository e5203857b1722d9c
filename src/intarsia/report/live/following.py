"""How a run stands: whether it goes on, how far it is, what it has come to and what went wrong."""

from __future__ import annotations

import json
import time
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from intarsia.methods import METHODS
from intarsia.report.elements import evenly
from intarsia.report.live.counting import Counted, number, text
from intarsia.report.live.folders import ODD, STATE, Found, odd_in
from intarsia.report.live.page_file import NOW
from intarsia.report.live.tails import OtherTable, Tail
from intarsia.runs import SETTINGS, SUMMARY, is_locked

TABLES = ("seconds", "events", "metrics", "traffic")
"""What is followed, in this order; the last one only until a summary tells what it comes to."""
RUNNING, FINISHED, STOPPED, FAILED = "running", "finished", "stopped", "failed"
QUIET = 60.0
"""Where nobody can tell whether a run holds its folder: it counts as running so many seconds after its last line."""
MOST_POINTS = 60
NAMED = 5
LATE = 5
"""A round that takes so many times as long as usual is worth a word."""
MOST_READ = 4 << 20
"""How large a file that is read whole may be."""
Standing = dict[str, Any]


@dataclass
class _File:
    """A small file, read anew when it changes."""

    path: Path
    parse: Callable[[str], Any]
    _seen: tuple[int, int, int] = (0, 0, 0)
    value: Any = None
    problem: str = ""

    def read(self) -> dict[str, Any]:
        """Return what it says; nothing where it is not there, or damaged."""
        try:
            about = self.path.stat()
            seen = (about.st_mtime_ns, about.st_size, about.st_ino)
            if seen != self._seen:
                self._seen, self.problem = seen, ""
                self.value = self._parsed(about.st_size)
        except FileNotFoundError:
            self._seen, self.value, self.problem = (0, 0, 0), None, ""
        except OSError as error:
            self.value, self.problem = None, f"{self.path.name} cannot be read ({error.strerror or error})"
        return self.value or {}

    def _parsed(self, length: int) -> dict[str, Any] | None:
        try:
            if length > MOST_READ:
                raise ValueError("it is too long")
            value = self.parse(self.path.read_text("utf8"))
        except (ValueError, RecursionError) as error:
            self.problem = f"{self.path.name} is damaged ({text(error)})"
            return None
        return value if isinstance(value, dict) else None


class Follower:
    """One run folder, followed while it grows: nothing in it is read twice."""

    def __init__(self, found: Found) -> None:
        self.found = found
        self._settings = _File(found.path / SETTINGS, tomllib.loads)
        self._summary = _File(found.path / SUMMARY, json.loads)
        self._now = _File(found.path / NOW, json.loads)
        self.standing: Standing = {}
        self.whole = False
        """Whether all lines that are there have been read."""
        self._begin()

    def _begin(self) -> None:
        self._counted = Counted()
        self._tails = {table: Tail(self.found.path / f"{table}.jsonl") for table in TABLES}

    def refresh(self, until: float) -> Standing:
        """Read what is new, but not for longer than until a time (of `time.monotonic`); return how the run stands."""
        try:
            self.standing = self._refreshed(until)
        except OtherTable:
            self._begin()
            self.whole = False
            self.standing = self.standing or self._about()
        except Exception as error:  # noqa: BLE001 - whatever lies in a folder, the others are shown
            self.whole = True
            self.standing = self._unread() | {"why": f"it cannot be read ({text(error)})"}
        return self.standing

    def _refreshed(self, until: float) -> Standing:
        odd = odd_in(self.found.path)
        if odd:
            self.whole = True
            return self._unread() | {"why": f"{text(odd)} {ODD}"}
        self.whole = self._read(until)
        return self._stands()

    def _read(self, until: float) -> bool:
        ended = self._summary.read().get("finished") is True
        for table in TABLES[: -1 if ended else None]:
            while rows := self._tails[table].next():
                self._counted.add(table, rows)
                if time.monotonic() > until:
                    return False
        return True

    def changed(self) -> float:
        """Return when something was last written, in seconds since the epoch."""
        times = []
        for path in (
            *(self.found.path / f"{table}.jsonl" for table in TABLES),
            self.found.path / SETTINGS,
            self.found.path / SUMMARY,
        ):
            try:
                times.append(path.stat().st_mtime)
            except OSError:
                continue
        return max(times, default=0.0)

    def _unread(self) -> Standing:
        """Return what is known of a run of which nothing was read."""
        return {
            "key": self.found.key,
            "name": text(self.found.name),
            "path": text(self.found.path),
            "method": "?",
            "seed": None,
            "rounds": 0,
            "changed": int(self.changed()),
            "state": FAILED,
            "why": "",
            "round": 0,
            "curve": [],
            "warnings": [],
        }

    def _about(self) -> Standing:
        """Return what a run is, whatever has become of it."""
        settings = self._settings.read()
        method = settings.get("method")
        name = text(method.get("name") if isinstance(method, dict) else method or "")
        return self._unread() | {
            "method": METHODS[name].title if name in METHODS else name or "?",
            "seed": number(settings.get("seed")),
            "rounds": number(settings.get("rounds")) or 0,
        }

    def _stands(self) -> Standing:
        counted, summary, about = self._counted, self._summary.read(), self._about()
        state, why = self._state(summary)
        taken = counted.taken
        lost = {
            k: number(summary.get(k)) if state == FINISHED else counted.kinds[k]
            for k in ("failed", "refused")
        }
        return about | {
            "state": state,
            "why": why,
            "round": counted.done if state != FINISHED else number(summary.get("rounds")) or counted.done,
            "clients": len(counted.clients) or number(summary.get("clients")) or 0,
            **self._scores(),
            "bytes": _sent(summary) if state == FINISHED else counted.bytes,
            "seconds": round(counted.seconds, 1),
            "left": self._left(about) if state == RUNNING else None,
            **lost,
            "losing": [[name, count] for name, count in counted.losing.most_common(NAMED)],
            "losers": len(counted.losing),
            "lost": counted.last_lost,
            "asked": len(taken.asked),
            "counted": taken.counted,
            "missing": sorted(taken.lost)[:NAMED],
            "now": self._going_on() if state == RUNNING else None,
            "warnings": self._warnings(summary, state, about),
            "curve": [[mean.round, _short(mean.value)] for mean in evenly(counted.curve, MOST_POINTS)],
            "reading": not self.whole,
        }

    def _scores(self) -> Standing:
        last = self._counted.curve[-1] if self._counted.curve else None
        return {
            "accuracy": _short(last.accuracy) if last else None,
            "worst": _short(last.worst) if last else None,
            "loss": _short(last.loss) if last else None,
        }

    def _state(self, summary: dict[str, Any]) -> tuple[str, str]:
        """Return whether a run goes on, and what there is to say of that."""
        if summary.get("finished") is True:
            return FINISHED, ""
        held = is_locked(self.found.path / STATE / "lock")
        if held or (held is None and time.time() - self.changed() < QUIET):
            return RUNNING, ""
        how = f"to go on: intarsia resume {text(self.found.path)}"
        if not summary:
            return FAILED, f"it ended without a word: it was killed, or it crashed; {how}"
        if self._counted.broken_off > self._counted.done:
            lost = self._counted.last_lost
            return FAILED, f"it broke off in round {self._counted.broken_off}: {lost}; {how}"
        return STOPPED, f"it was stopped; {how}"

    def _left(self, about: Standing) -> float | None:
        """Return how many seconds the rest takes, if its rounds take as long as the last ones."""
        lately, done = self._counted.lately, self._counted.done
        if not lately or not about["rounds"]:
            return None
        rest = float(about["rounds"] - done) * sum(lately) / len(lately)
        return round(max(0.0, rest - self._since_round()), 1)

    def _since_round(self) -> float:
        try:
            return max(0.0, time.time() - (self.found.path / "seconds.jsonl").stat().st_mtime)
        except OSError:
            return 0.0

    def _going_on(self) -> Standing | None:
        """Return who has answered in the exchange that goes on, where the run tells."""
        now = self._now.read()
        asked, there = number(now.get("asked")), now.get("answered")
        if not asked or not isinstance(there, list):
            return {"playing": text(now.get("playing") or "")} if now.get("playing") else None
        answered = {text(name) for name in there}
        known = self._counted.clients | self._counted.taken.asked
        waiting = sorted(known - answered) if len(known) == asked else []
        return {
            "playing": text(now.get("playing") or ""),
            "round": number(now.get("round")),
            "exchange": text(now.get("exchange") or ""),
            "asked": asked,
            "answered": number(now.get("count")) or len(answered),
            "waiting": waiting[: NAMED + 1],
            "since": number(now.get("since")),
        }

    def _warnings(self, summary: dict[str, Any], state: str, about: Standing) -> list[str]:
        judged = summary.get("judged")
        told = judged.get("warnings") if isinstance(judged, dict) else []
        found = dict(self._counted.warnings)
        for warned in told if isinstance(told, list) else []:
            if isinstance(warned, dict):
                found.setdefault(text(warned.get("message", "")))
        found |= dict.fromkeys(filter(None, (self._settings.problem, self._summary.problem)))
        damaged = self._counted.damaged + sum(tail.damaged for tail in self._tails.values())
        if damaged:
            found[f"{damaged} lines of its tables are damaged, and left out"] = None
        usual = sum(self._counted.lately) / max(1, len(self._counted.lately))
        if state == RUNNING and usual and self._since_round() > max(QUIET, LATE * usual):
            found[f"round {self._counted.done + 1} takes {LATE} times as long as usual, or longer"] = None
        return list(found)


def _sent(summary: dict[str, Any]) -> float | None:
    sent = summary.get("bytes")
    return sum(number(sent.get(way)) or 0 for way in ("up", "down")) if isinstance(sent, dict) else None


def _short(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.5g}")
