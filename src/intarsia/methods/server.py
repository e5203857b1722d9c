"""What a method sees of the server while it plays a round."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from intarsia.blocks import ALL, Address, Block, Update
from intarsia.core import Each, SettingsError, one_by_one
from intarsia.data import ClientInfo, Examples
from intarsia.data.public import PUBLIC, to_block
from intarsia.methods.addresses import Addresses
from intarsia.methods.shared import SharedBlocks
from intarsia.models import Spec
from intarsia.training import Training

Lines = dict[str, list[dict[str, Any]]]
"""Lines of the run's tables, by table."""


@dataclass(frozen=True)
class ClientModel:
    """What the server knows of a client's model."""

    module: nn.Module
    """The model that the client starts from."""
    blocks: tuple[str, ...]
    spec: Spec | None
    """The architecture, with which it can be built elsewhere; none of one given in Python."""


@dataclass
class Server:
    """The server in one round; what a method changes here counts if the round does."""

    round: int
    rounds: int
    seed: int
    clients: Mapping[str, ClientInfo]
    residents: Sequence[str]
    """The clients that can take part in training; the others are newcomers, which never answer an exchange of it."""
    pool: SharedBlocks
    state: dict[str, Any]
    """Plain values that stay with the server between rounds."""
    addresses: Addresses
    """Who shares what."""
    model_of: Callable[[str], ClientModel]
    """What is known of a client's model."""
    public: Examples | None = None
    """Data of the server's own, that is no client's."""
    lines: Lines = field(default_factory=lambda: defaultdict(list))
    """What is to be recorded of this round: who changed groups, what the method has to say; by table."""
    each: Each = one_by_one
    """Does pieces of work that do not depend on each other, side by side where the engine can."""
    training: Training = field(default_factory=Training)
    """How clients train."""

    def public_block(self) -> dict[Address, Block]:
        """Return the public data as an exchange sends it; without any, an error that says how to get some."""
        if self.public is None:
            raise SettingsError(
                "this method needs public data: set population.public to the share that is set apart for it, or name "
                "another population in the setting public"
            )
        return {Address(PUBLIC, ALL): to_block(self.public)}

    def note(self, kind: str, **values: Any) -> None:
        """Record plain values of this round."""
        self.lines["notes"].append({"round": self.round, "kind": kind, **values})

    def address(self, block: str, client: str) -> Address:
        """Return where a client's block lives now."""
        return self.addresses.where(block, client)

    def merged(self, block: str, replies: Mapping[str, Update]) -> Block:
        """Return what a block becomes if only these clients share it: their updates, merged as the method does.

        Clients that came from different groups are merged with those of their own; then the mean is taken.
        """
        origins: dict[Address, dict[str, Update]] = {}
        for client, update in replies.items():
            origins.setdefault(self.address(block, client), {})[client] = update
        return self.pool.merged(origins)

    def regroup(self, block: str, groups: Mapping[str, str], modules: Mapping[str, Block]) -> None:
        """Move clients to groups; `modules` has the block of every group that is new to the pool."""
        for client, group in groups.items():
            before = self.address(block, client).group
            if before != group:
                move = {"block": block, "client": client, "group": group, "before": before}
                self.lines["groups"].append({"round": self.round, **move})
        for group, module in modules.items():
            self.pool.put(self.addresses.pool.present(Address(block, group)), module)
        found = self.addresses.found
        found[block] = {**found.get(block, {}), **groups}
        shared = {self.address(block, client) for client in self.clients}
        for address in list(self.pool):
            if address.block == block and address not in shared:
                self.pool.remove(address)
