"""Clients' own blocks on a cluster: a worker keeps those of clients that it has done, the server has them all."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from intarsia.blocks import Block, BlockStore
from intarsia.clients import State
from intarsia.core import CheckpointError, Refused

MOST = 1 << 28
"""Bytes of clients' own blocks that a worker keeps; who has not been there for longest goes first."""


def versions_of(state: State) -> frozenset[str]:
    """Return the versions of the blocks that a client's state names."""
    return frozenset(state.get("private", {}).values())


class CarriedBlocks(BlockStore):
    """What a worker holds of clients' own blocks: in memory, by client; what comes anew is told to the server."""

    def __init__(self) -> None:
        super().__init__(Path("clients' own blocks"))
        self._clients: dict[str, dict[str, Block]] = {}
        self._now: dict[str, Block] = {}
        """The blocks of the clients whose turn it is, and what they made."""

    def put(self, block: Block) -> str:
        """Hold a block, and return its version; one with a NaN or an infinity is refused."""
        if block.flaw:
            raise Refused(f"{block.flaw}: such a block is not kept")
        self._now[block.version] = block.copy(block.version)
        return block.version

    def get(self, version: str) -> Block:
        """Return a block that came or was made here."""
        if version not in self._now:
            raise CheckpointError(f"block {version} is not at this worker: the server should have sent it")
        return self._now[version]

    def begin(self, clients: Iterable[str], forget: Iterable[str]) -> None:
        """Begin with some clients' jobs; let go of the blocks of others."""
        for client in forget:
            self._clients.pop(client, None)
        self._now = {v: block for client in clients for v, block in self._clients.get(client, {}).items()}

    def bring(self, blocks: Mapping[str, Block]) -> None:
        """Take blocks that came from the server, for clients whose turn it is."""
        self._now.update(blocks)

    def settle(self, client: str, before: State, after: State) -> tuple[dict[str, Block], int]:
        """Keep what the client's state names after a job; return what is new in it, and how many bytes are kept."""
        kept = {version: self._now[version] for version in sorted(versions_of(after))}
        self._clients[client] = kept
        new = {version: block for version, block in kept.items() if version not in versions_of(before)}
        return new, sum(block.nbytes for block in kept.values())


@dataclass
class Kept:
    """What the server knows of the own blocks that a worker keeps."""

    clients: dict[str, tuple[frozenset[str], int]] = field(default_factory=dict)
    """By client, whose turn was longest ago first: versions, and their bytes."""

    def missing(self, client: str, state: State) -> list[str]:
        """Return the versions that must be sent for a job of a client."""
        return sorted(versions_of(state) - self.clients.get(client, (frozenset(), 0))[0])

    def note(self, client: str, state: State, sizes: int) -> None:
        """Note that a worker keeps what a state names."""
        self.clients.pop(client, None)
        if versions := versions_of(state):
            self.clients[client] = (versions, sizes)

    def crowded_out(self, busy: Collection[str]) -> list[str]:
        """Return whose blocks a worker is to forget, so that there is room for others."""
        total, gone = sum(size for _, size in self.clients.values()), []
        for client, (_, size) in self.clients.items():
            if total <= MOST:
                break
            if client not in busy:
                gone.append(client)
                total -= size
        for client in gone:
            del self.clients[client]
        return gone
