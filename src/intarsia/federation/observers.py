"""Several observers of one run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from intarsia.engines import Reply
from intarsia.federation.summary import Observer, RoundReport


class Observers(Observer):
    """Several observers as one: each is told of everything, and any of them may stop the run."""

    def __init__(self, observers: Iterable[Observer]) -> None:
        self.observers = tuple(observers)

    def playing(self, what: str) -> None:
        """Tell all."""
        for observer in self.observers:
            observer.playing(what)

    def opened(self, folder: Path) -> None:
        """Tell all."""
        for observer in self.observers:
            observer.opened(folder)

    def started(self, rounds: int, done: int, clients: int) -> None:
        """Tell all."""
        for observer in self.observers:
            observer.started(rounds, done, clients)

    def exchange_started(self, round: int, name: str, clients: int) -> None:
        """Tell all."""
        for observer in self.observers:
            observer.exchange_started(round, name, clients)

    def replied(self, reply: Reply) -> None:
        """Tell all."""
        for observer in self.observers:
            observer.replied(reply)

    def round_done(self, report: RoundReport) -> None:
        """Tell all."""
        for observer in self.observers:
            observer.round_done(report)

    def wants_stop(self) -> bool:
        """Ask all, each of them."""
        asked = [observer.wants_stop() for observer in self.observers]
        return any(asked)

    def ended(self, summary: Mapping[str, Any]) -> None:
        """Tell all."""
        for observer in self.observers:
            observer.ended(summary)
