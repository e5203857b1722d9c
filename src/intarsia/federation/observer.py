"""Who is told of what happens in a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from intarsia.engines import Failure, Reply


@dataclass(frozen=True)
class RoundReport:
    """What an observer is told of a round that is done."""

    round: int
    rounds: int
    accuracy: Mapping[str, float]
    bytes: Mapping[str, int]
    failures: Sequence[Failure]
    seconds: Mapping[str, float]
    """Where the time of this round went: the stages of `STAGES`, all of it, and the clients' own work."""
    epsilon: float | None = None
    """What the run has cost its clients of their privacy, where that is protected."""


class Observer:
    """Told of what happens; every method may be left out."""

    def playing(self, what: str) -> None:
        """Say what begins beside the run itself, for example a baseline (empty: now the run itself)."""

    def started(self, rounds: int, done: int, clients: int) -> None:
        """Say that the loop begins."""

    def exchange_started(self, round: int, name: str, clients: int) -> None:
        """Say that tasks go out."""

    def replied(self, reply: Reply) -> None:
        """Say that one client has answered."""

    def round_done(self, report: RoundReport) -> None:
        """Say that a round is done."""

    def wants_stop(self) -> bool:
        """Ask, between two rounds, whether the run is to stop here, with its state saved."""
        return False
