"""What a run knows of its clients between rounds, and which of it checkpoints still name.

Both are kept change by change: what a round costs must not grow with the clients that sit it out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from intarsia.clients import State


@dataclass(frozen=True)
class ClientRecord:
    """What the run knows of a client between rounds."""

    held: Mapping[str, str] = field(default_factory=dict)
    """The versions that the client holds as received, by address."""
    state: State = field(default_factory=dict)

    @property
    def private(self) -> Collection[str]:
        """The versions of the client's own blocks."""
        return tuple(self.state.get("private", {}).values())

    def to_json(self) -> dict[str, Any]:
        """Return the record as plain values."""
        return {"held": dict(self.held), "state": dict(self.state)}


class Records(Mapping[str, ClientRecord]):
    """Records by client: those that changed since they were last settled lie upon all others."""

    def __init__(self, records: Mapping[str, ClientRecord] | None = None) -> None:
        self._settled: dict[str, ClientRecord] = {}
        self._changed: dict[str, ClientRecord] = dict(records or {})
        self._replaced: list[ClientRecord] = []

    def __getitem__(self, client: str) -> ClientRecord:
        return self._changed[client] if client in self._changed else self._settled[client]

    def __setitem__(self, client: str, record: ClientRecord) -> None:
        if client in self._changed:
            self._replaced.append(self._changed[client])
        self._changed[client] = record

    def __iter__(self) -> Iterator[str]:
        return iter({**self._settled, **self._changed})

    def __len__(self) -> int:
        return len({**self._settled, **self._changed})

    def draft(self) -> Records:
        """Return records that can be changed and thrown away; until then, these must not be settled."""
        draft = Records(self._changed)
        draft._settled, draft._replaced = self._settled, list(self._replaced)
        return draft

    def settle(self) -> Settled:
        """Lay what changed to the rest; say what that was."""
        settled = Settled(self._settled, self._changed, self._replaced)
        self._settled.update(self._changed)
        self._changed, self._replaced = {}, []
        return settled


@dataclass(frozen=True)
class Settled:
    """What changed in a run's records since the last time."""

    everyone: Mapping[str, ClientRecord]
    """All records; the same object as long as it is the same run."""
    changed: Mapping[str, ClientRecord]
    replaced: Sequence[ClientRecord]
    """Records that came and went in between."""


class Named:
    """The client states and blocks that the checkpoints on disk name."""

    def __init__(self) -> None:
        self.rounds: list[int] = []
        """The rounds that have a checkpoint, in order."""
        self._records: dict[str, list[tuple[int, ClientRecord]]] = {}
        """By client: records, each with the first checkpoint that names it; the last is the present one."""
        self._changed_after: dict[int, set[str]] = {}
        """By checkpoint: whose records are others in the next one."""
        self._shared: dict[int, Collection[str]] = {}
        """By checkpoint: the versions that it names beside those of clients."""
        self._count: Counter[str] = Counter()

    def states(self, client: str) -> list[State]:
        """Return every state of a client that a checkpoint names."""
        return [record.state for _, record in self._records.get(client, ())]

    def versions(self) -> Collection[str]:
        """Return every block that a checkpoint names."""
        return self._count.keys()

    def unnamed(self, records: Iterable[ClientRecord]) -> set[str]:
        """Return those blocks of these records that no checkpoint names."""
        return {version for record in records for version in record.private if version not in self._count}

    def add(self, round: int, changed: Mapping[str, ClientRecord], shared: Collection[str]) -> None:
        """Note a checkpoint: the newest, or the newest once more."""
        for client, record in changed.items():
            self._count.update(record.private)
            self._records.setdefault(client, []).append((round, record))
        self._count.update(shared)
        before, self._shared[round] = self._shared.get(round, ()), shared
        self._lose(before)
        self.rounds = sorted({*self.rounds, round})
        if len(self.rounds) > 1:
            self._changed_after.setdefault(self.rounds[-2], set()).update(changed)

    def remove(self, round: int) -> set[str]:
        """Forget a checkpoint that is not the newest; return the blocks that none names any more."""
        self.rounds.remove(round)
        lost = list(self._shared.pop(round))
        clients = self._changed_after.pop(round, set())
        earlier = [kept for kept in self.rounds if kept < round]
        if earlier:
            self._changed_after.setdefault(earlier[-1], set()).update(clients)
        for client in clients:
            lost += self._prune(client)
        return self._lose(lost)

    def _prune(self, client: str) -> list[str]:
        """Forget the records of a client that no checkpoint names; return their blocks."""
        records = self._records[client]
        lost: list[str] = []
        ends = [first for first, _ in records[1:]]
        kept = records[-1:]
        for (first, record), end in reversed(list(zip(records, ends, strict=False))):
            if any(first <= round < end for round in self.rounds):
                kept.insert(0, (first, record))
            else:
                lost += record.private
        self._records[client] = kept
        return lost

    def _lose(self, versions: Iterable[str]) -> set[str]:
        self._count.subtract(versions)
        gone = {version for version in versions if self._count[version] <= 0}
        for version in gone:
            del self._count[version]
        return gone
