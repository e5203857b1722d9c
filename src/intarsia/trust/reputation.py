"""What is remembered of clients: how often their updates were refused, scaled back or far; and who is left out."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

REFUSED, CLIPPED, FAR, LEFT_OUT = "refused", "clipped", "far", "left out"
RECENT = 10
"""How many exchanges back norms are remembered."""


class Reputation:
    """Reads and changes the plain values that stay with a run."""

    def __init__(self, state: dict[str, Any]) -> None:
        self._state = state

    def norms(self, step: str) -> list[float]:
        """Return the median norms of the last exchanges of this step."""
        return list(self._state.get("norms", {}).get(step, ()))

    def add_norm(self, step: str, norm: float) -> None:
        """Remember the median norm of an exchange."""
        self._state.setdefault("norms", {})[step] = [*self.norms(step), norm][-RECENT:]

    @property
    def left_out(self) -> dict[str, int]:
        """Who is left out, and since which round."""
        return dict(self._state.get(LEFT_OUT, {}))

    def counts(self, client: str) -> dict[str, int]:
        """Return how often a client's updates were refused, scaled back, far."""
        return dict(self._state.get("counts", {}).get(client, {}))

    def marks(self, client: str) -> int:
        """Return how many marks a client has now."""
        return int(self._state.get("marks", {}).get(client, 0))

    def judge(self, client: str, faults: Iterable[str], most: int, round: int) -> bool:
        """Remember what was wrong in an exchange; return whether the client is left out from now on."""
        found = sorted(set(faults))
        counts = self.counts(client)
        for fault in found:
            counts[fault] = counts.get(fault, 0) + 1
        marks = self.marks(client) + 1 if found else max(0, self.marks(client) - 1)
        for key, value in (("counts", counts), ("marks", marks)):
            if value or client in self._state.get(key, {}):
                self._state.setdefault(key, {})[client] = value
        if not most or marks < most or client in self.left_out:
            return False
        self._state.setdefault(LEFT_OUT, {})[client] = round
        return True

    def first_time(self, what: str) -> bool:
        """Return whether this was not said before; it is from now on."""
        said = self._state.setdefault("said", [])
        if what in said:
            return False
        said.append(what)
        return True
