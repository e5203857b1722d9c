"""All that a run is between two rounds: the pool, the server's state, and what is known of each client.

Clients' records are kept change by change: what a round costs must not grow with the clients that sit it out.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from intarsia.blocks import VERSION, Address, Block, BlockStore, Code, Pool
from intarsia.clients import State
from intarsia.methods import Groups
from intarsia.runs.tables import TABLES


class ClientRecord:
    """What the run knows of a client between rounds.

    It is held as text, since there is one of every client that has taken part: objects would take many times as much.
    """

    __hash__ = None  # type: ignore[assignment]
    __slots__ = ("text",)

    def __init__(self, held: Mapping[str, str] | None = None, state: State | None = None) -> None:
        self.text = json.dumps({"held": dict(held or {}), "state": dict(state or {})}).encode()
        """The record as JSON."""

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ClientRecord):
            return NotImplemented
        return self.text == other.text or self.to_json() == other.to_json()

    def __repr__(self) -> str:
        return f"ClientRecord({self.text.decode()})"

    @property
    def held(self) -> Mapping[str, str]:
        """The versions that the client holds as received, by address."""
        return dict(self.to_json()["held"])

    @property
    def state(self) -> State:
        """What stays with the client."""
        return dict(self.to_json()["state"])

    @property
    def private(self) -> Collection[str]:
        """The versions of the client's own blocks."""
        return tuple(self.state.get("private", {}).values())

    def to_json(self) -> dict[str, Any]:
        """Return the record as plain values."""
        return dict(json.loads(self.text))


class Flight(BaseModel):
    """A client that trains while the server goes on."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    number: Annotated[int, Field(ge=1)]
    """Which one of the run it is."""
    sent: Annotated[int, Field(ge=0)]
    """The round whose outcome it goes on from."""
    trip: dict[str, str | float]
    """How long it takes, and whether it comes back."""
    versions: dict[str, Annotated[str, Field(pattern=f"^{VERSION}$")]]
    """What the client was sent or held already, by address."""
    replaced: dict[str, Annotated[int, Field(ge=0)]] = Field(default_factory=dict)
    """How often the block of an address had been replaced by then."""

    @property
    def due(self) -> float:
        """When it comes in."""
        return sum(float(self.trip[part]) for part in ("asked", "latency", "down", "compute", "up"))


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


@dataclass
class RunState:
    """All that a run is between two rounds."""

    run: str
    pool: Pool
    round: int = 0
    clients: Records = field(default_factory=Records)
    totals: dict[str, float] = field(default_factory=dict)
    """Seconds, bytes and counts so far."""
    best: dict[str, Any] = field(default_factory=dict)
    """The round with the best validation accuracy, and the test accuracy in it."""
    server: dict[str, Any] = field(default_factory=dict)
    """What the method keeps on the server."""
    trust: dict[str, Any] = field(default_factory=dict)
    """What the defence keeps: clients' marks, usual norms."""
    groups: Groups = field(default_factory=dict)
    """Groups that were found."""
    initial: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """The versions of the blocks that each model started from."""
    files: Mapping[str, int] = field(default_factory=lambda: dict.fromkeys(TABLES, 0))
    """How long each table is."""
    codes: dict[Address, Code] = field(default_factory=dict)
    """How blocks follow from their last version, where they travel as changes."""

    flying: dict[str, Flight] = field(default_factory=dict)
    """Clients that train while the server goes on, where it does."""
    flown: dict[str, Block] = field(default_factory=dict)
    """The blocks that these went out with, by version."""
    replaced: dict[str, int] = field(default_factory=dict)
    """How often the block of an address was replaced, where clients train while the server goes on."""

    def draft(self) -> RunState:
        """Return a copy that a round can change and throw away."""
        return replace(
            self,
            pool=self.pool.copy(),
            clients=self.clients.draft(),
            totals=dict(self.totals),
            best=dict(self.best),
            server=copy.deepcopy(self.server),
            trust=copy.deepcopy(self.trust),
            groups={block: dict(of) for block, of in self.groups.items()},
            codes=dict(self.codes),
            flying=dict(self.flying),
            flown=dict(self.flown),
            replaced=dict(self.replaced),
        )

    def initial_blocks(self, store: BlockStore) -> dict[str, dict[str, Block]]:
        """Return the blocks that each model started from, by the model's key."""
        return {
            key: {name: store.get(version) for name, version in blocks.items()}
            for key, blocks in self.initial.items()
        }

    def shared(self) -> set[str]:
        """Return the versions of all blocks that this state names beside those of its clients."""
        initial = {v for blocks in self.initial.values() for v in blocks.values()}
        codes = {b.version for c in self.codes.values() for b in (c.base, c.change, c.lost)}
        return {block.version for block in self.pool.blocks()} | initial | codes | self.flown.keys()
