"""What the lines of a run's tables come to, added up as they are written."""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from intarsia.core.text import harmless
from intarsia.federation import WARNING
from intarsia.methods import OWN
from intarsia.report.live.tails import Row
from intarsia.trust.reputation import LEFT_OUT

LATELY = 20
"""How many rounds the time of the next ones is estimated from."""
KEPT = 3
"""For how many rounds it is kept who took part."""
LOST = ("failed", "refused", LEFT_OUT)
"""Events after which a client's update does not count."""
MOST_WARNINGS = 20
MOST_LETTERS = 400


def number(value: Any) -> float | None:
    """Return a finite number; None for anything else."""
    plain = isinstance(value, int | float) and not isinstance(value, bool)
    return value if plain and math.isfinite(value) else None


def text(value: Any) -> str:
    """Return a text as it may be shown: nothing in it moves a cursor, and it is not endless."""
    shown = harmless(str(value))
    return shown if len(shown) <= MOST_LETTERS else f"{shown[: MOST_LETTERS - 1]}…"


@dataclass
class Score:
    """What clients' own models reached after a round."""

    accuracy: list[float] = field(default_factory=list)
    loss: list[float] = field(default_factory=list)


@dataclass
class Mean:
    """The mean over clients after a round, and the worst of them."""

    round: int
    accuracy: float | None
    worst: float | None
    loss: float | None

    @property
    def value(self) -> float | None:
        """What is drawn: accuracy, or the loss where there is none."""
        return self.loss if self.accuracy is None else self.accuracy


@dataclass
class Taken:
    """Who took part in a round."""

    trained: set[str] = field(default_factory=set)
    lost: dict[str, str] = field(default_factory=dict)
    """Whose update does not count, and why."""
    met: set[str] = field(default_factory=set)
    """Whose messages were counted: sites among them, where they speak for their clients."""

    @property
    def asked(self) -> set[str]:
        """Who was asked to train."""
        return (self.trained or self.met) | self.lost.keys()

    @property
    def counted(self) -> int:
        """How many clients' updates count."""
        return len(self.asked - self.lost.keys())


class Counted:
    """What is known of a run from its tables, line by line; lines that say nothing sensible are counted as damaged."""

    def __init__(self) -> None:
        self.done = 0
        self.seconds = 0.0
        self.lately: deque[float] = deque(maxlen=LATELY)
        self.clients: set[str] = set()
        self.bytes = 0
        self.kinds: Counter[str] = Counter()
        self.losing: Counter[str] = Counter()
        """Clients that fail or are refused, and how often."""
        self.warnings: dict[str, None] = {}
        self.last_lost = ""
        self.broken_off = 0
        """The last round that something is said of in the events."""
        self.damaged = 0
        self._scores: dict[int, Score] = {}
        self._means: dict[int, Mean] = {}
        self._taken: dict[int, Taken] = {}

    def add(self, table: str, rows: Iterable[Row]) -> None:
        """Add lines of a table."""
        take: Callable[[Row], None] = getattr(self, f"_{table}")
        for row in rows:
            try:
                take(row)
            except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
                self.damaged += 1

    def _seconds(self, row: Row) -> None:
        self.done = max(self.done, int(row["round"]))
        spent = number(row.get("total")) or 0.0
        self.seconds += spent
        self.lately.append(spent)

    def _metrics(self, row: Row) -> None:
        round, client = int(row["round"]), text(row["client"])
        if row["split"] == "train":
            self._of(round).trained.add(client)
        if row["split"] != "test" or row["stage"] != OWN:
            return
        self.clients.add(client)
        score = self._scores.setdefault(round, Score())
        for kind, values in (("accuracy", score.accuracy), ("loss", score.loss)):
            if (own := number(row[kind])) is not None:
                values.append(own)

    def _traffic(self, row: Row) -> None:
        if row["purpose"] == "train":
            self.bytes += int(row["bytes"])
            self._of(int(row["round"])).met.add(text(row["client"]))

    def _events(self, row: Row) -> None:
        kind, round, client = text(row["kind"]), int(row["round"]), text(row.get("client") or "")
        self.kinds[kind] += 1
        message = text(row["message"])
        if kind == WARNING:
            if len(self.warnings) < MOST_WARNINGS:
                self.warnings.setdefault(message)
            return
        self.broken_off = max(self.broken_off, round)
        if kind in LOST and client:
            self.losing[client] += 1
            self.last_lost = message
            if row.get("exchange") != "evaluate":
                self._of(round).lost[client] = kind

    def _of(self, round: int) -> Taken:
        taken = self._taken.setdefault(round, Taken())
        while len(self._taken) > KEPT:
            del self._taken[min(self._taken)]
        return taken

    @property
    def taken(self) -> Taken:
        """Who took part in the last round that is done."""
        return self._taken.get(self.done, Taken())

    @property
    def curve(self) -> list[Mean]:
        """The means after every round that was evaluated and is done."""
        for round in [r for r in self._scores if r <= self.done]:
            own = self._scores.pop(round)
            self._means[round] = Mean(
                round, _mean(own.accuracy), min(own.accuracy, default=None), _mean(own.loss)
            )
        return [self._means[round] for round in sorted(self._means)]


def _mean(values: list[float]) -> float | None:
    return math.fsum(values) / len(values) if values else None
