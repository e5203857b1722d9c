"""A round that is not committed yet."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from intarsia.blocks import Task
from intarsia.clients import State
from intarsia.engines import Job, Reply
from intarsia.federation.summary import SECONDS, Row
from intarsia.methods import Round
from intarsia.runs import TABLES, ClientRecord, RunState


class NobodyInTime(Exception):  # noqa: N818
    """An exchange that no client answered in time: the round ends with what it has."""


@dataclass
class Draft:
    """A round that is not committed yet."""

    state: RunState
    before: Mapping[str, float]
    """The totals of the run when the round began."""
    lines: dict[str, list[Row]] = field(default_factory=lambda: {table: [] for table in TABLES})
    """What is to be added to the tables."""

    @classmethod
    def of(cls, state: RunState) -> Draft:
        """Begin a round."""
        return cls(state.draft(), dict(state.totals))

    def count(self, name: str, amount: float) -> None:
        """Add to a total of the run."""
        self.state.totals[name] = self.state.totals.get(name, 0) + amount

    def note_traffic(self, jobs: Iterable[Job], replies: Iterable[Reply]) -> None:
        """Note what travelled, and what failed."""
        for job, reply in zip(jobs, replies, strict=True):
            sent = job.task.traffic() if reply.sent is None else reply.sent
            for row in (*sent, *reply.traffic):
                self.lines["traffic"].append(row.to_json())
                self.count(f"bytes_{row.purpose}_{row.direction}", row.bytes)
            if reply.failure is not None:
                where = {"round": job.task.round, "exchange": job.task.exchange}
                self.lines["events"].append(where | reply.failure.to_json())

    def hold(self, task: Task, after: State | None = None) -> None:
        """Note what a client holds from now on, and the state that its update led to (None: the one it had)."""
        record = self.state.clients.get(task.client, ClientRecord())
        held = {**record.held, **{str(address): version for address, version in task.versions.items()}}
        self.state.clients[task.client] = ClientRecord(held, record.state if after is None else after)

    def seconds(self) -> dict[str, float]:
        """Return where the time of this round went so far."""
        return {
            name.removeprefix(SECONDS): total - self.before.get(name, 0.0)
            for name, total in self.state.totals.items()
            if name.startswith(SECONDS)
        }


def timed(conversation: Round, draft: Draft) -> Round:
    """Hold a conversation; the server's own work is counted."""
    replies: Any = None
    while True:
        start = time.perf_counter()
        try:
            exchange = conversation.send(replies)
        except StopIteration:
            return
        finally:
            draft.count("seconds_server", time.perf_counter() - start)
        replies = yield exchange
