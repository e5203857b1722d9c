"""What a method sees of the server while it plays a round."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from intarsia.blocks import ALL, Address, Block, Code, Fold, Merge, Pool, Update, Values
from intarsia.core import Each, SettingsError, one_by_one
from intarsia.data import ClientInfo, Examples
from intarsia.data.public import PUBLIC, to_block
from intarsia.models import Spec
from intarsia.training import Training

Groups = dict[str, dict[str, str]]
"""Groups that were found, by block and client; they stand before those that the sharing names."""
Contribution = tuple[Block, int, Values]
"""A block, what it counts in a merge, and the values that came with it."""


@dataclass
class Server:
    """The server in one round; what a method changes here counts if the round does."""

    round: int
    rounds: int
    seed: int
    clients: Mapping[str, ClientInfo]
    residents: Sequence[str]
    """The clients that can take part in training; the others are newcomers, which never answer an exchange of it."""
    pool: Pool
    state: dict[str, Any]
    """Plain values that stay with the server between rounds."""
    groups: Groups
    named: Callable[[str, str], Address]
    """The address of a block and client as the sharing names it."""
    model_of: Callable[[str], nn.Module]
    """The model that a client starts from."""
    blocks_of: Callable[[str], tuple[str, ...]]
    """The blocks of a client's model."""
    spec_of: Callable[[str], Spec | None]
    """The architecture of a client's model, with which it can be built elsewhere; none of one given in Python."""
    sent: Pool = field(default_factory=Pool)
    """The pool as it was when the last exchange went out."""
    merge: Merge = field(default_factory=Merge)
    """How the method merges updates."""
    weights: Mapping[str, int] = field(default_factory=dict)
    """What each client of this round counts in a merge: its training samples, as often as it was drawn."""
    codes: dict[Address, Code] = field(default_factory=dict)
    """How blocks follow from their last version, where they travel as changes."""
    restarts: dict[Address, int] = field(default_factory=dict)
    """How often a block was restarted."""
    moves: list[dict[str, Any]] = field(default_factory=list)
    """Who changed groups in this round."""

    public: Examples | None = None
    """Data of the server's own, that is no client's."""
    notes: list[dict[str, Any]] = field(default_factory=list)
    """What the method has to say of this round: lines of `notes.jsonl`."""
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
        self.notes.append({"round": self.round, "kind": kind, **values})

    def address(self, block: str, client: str) -> Address:
        """Return where a client's block lives now."""
        found = self.groups.get(block, {}).get(client)
        return self.named(block, client) if found is None else Address(block, found)

    def merged(self, block: str, replies: Mapping[str, Update]) -> Block:
        """Return what a block becomes if only these clients share it: their updates, merged as the method does.

        Clients that came from different groups are merged with those of their own; then the mean is taken.
        """
        origins: dict[Address, list[Contribution]] = {}
        for client, update in replies.items():
            address = self.address(block, client)
            one = (update.blocks[address], self.weights[client], update.values)
            origins.setdefault(address, []).append(one)
        each: list[Contribution] = [
            (_fold(self.merge, address, self.sent.get(address), own), sum(weight for _, weight, _ in own), {})
            for address, own in sorted(origins.items())
        ]
        merged = each[0][0] if len(each) == 1 else _fold(Merge(), min(origins), each[0][0], each)
        if merged.finite:
            return merged
        self.pool.kept.append(min(origins))
        return self.sent.get(min(origins))

    def restart(self, address: Address, block: Block) -> None:
        """Put a block that does not go on from the present one: what codecs lost of that one is forgotten."""
        self.replace(address, block)
        self.restarts[address] = self.restarts.get(address, 0) + 1

    def regroup(self, block: str, groups: Mapping[str, str], modules: Mapping[str, Block]) -> None:
        """Move clients to groups; `modules` has the block of every group that is new to the pool."""
        for client, group in groups.items():
            before = self.address(block, client).group
            if before != group:
                self.moves.append({"block": block, "client": client, "group": group, "before": before})
        for group, module in modules.items():
            self.replace(Address(block, group), module)
        self.groups[block] = {**self.groups.get(block, {}), **groups}
        shared = {self.address(block, client) for client in self.clients}
        for address in list(self.pool):
            if address.block == block and address not in shared:
                self.remove(address)

    def replace(self, address: Address, block: Block) -> None:
        """Put a block that is no merge of updates: no code leads to it, and what the last one lost is not its own.

        Methods change the pool by this and `remove`, never past them.
        """
        self.pool.put(address, block)
        self.codes.pop(address, None)

    def remove(self, address: Address) -> None:
        """Forget a block, and how it followed from its last version."""
        self.pool.remove(address)
        self.codes.pop(address, None)


def _fold(merge: Merge, address: Address, present: Block, updates: Sequence[Contribution]) -> Block:
    """Return the next version of an address: exact, in any order of the updates."""
    fold = Fold(merge, {address: present}, {address: sum(weight for _, weight, _ in updates)})
    for block, weight, values in updates:
        fold.add({address: block}, {address: block.layout}, weight, values)
    return fold.finish()[address]
