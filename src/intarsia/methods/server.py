"""The server as a method sees it: who shares what, the pool of blocks, and the round that is played."""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor, nn

from intarsia.blocks import ALL, Address, Block, Code, Fold, Merge, Pool, Update, Values
from intarsia.core import Each, SettingsError, one_by_one
from intarsia.data import ClientInfo, Examples
from intarsia.data.public import PUBLIC, to_block
from intarsia.models import Spec
from intarsia.training import OPTIMISERS, Training

Groups = dict[str, dict[str, str]]
"""Groups that were found, by block and client; they stand before those that the sharing names."""


@dataclass(frozen=True)
class Addresses:
    """Where clients' blocks live: the one place to ask, for setup, planner and methods alike."""

    named: Mapping[str, Mapping[str, Address]]
    """By client and block, before anything was found: given by the sharing or the clients' models; frozen; at home."""
    found: Groups = field(default_factory=dict)
    pool: Pool = field(default_factory=Pool)
    """Where blocks lie now: one that was restarted is not where it was."""

    def where(self, block: str, client: str) -> Address:
        """Return where a client's block lives: in the group that was found, or else as it was named."""
        found = self.found.get(block, {}).get(client)
        return self.pool.present(self.named[client][block] if found is None else Address(block, found))

    def of(self, client: str) -> dict[str, Address]:
        """Return where all blocks of a client live, in the order of its model."""
        return {block: self.where(block, client) for block in self.named[client]}

    def now(self, groups: Groups, pool: Pool) -> Addresses:
        """Return the same in a run, with the groups that were found; what comes into both later counts too."""
        return replace(self, found=groups, pool=pool)


Updates = Mapping[str, Update]
"""Updates with their blocks, by client."""
Contribution = tuple[Block, int, Values]
"""A block, what it counts in a merge, and the values that came with it."""


@dataclass(frozen=True)
class Sent:
    """What went out with the last exchange, and how the answers to it are merged."""

    pool: Pool = field(default_factory=Pool)
    weights: Mapping[str, int] = field(default_factory=dict)
    """What each client of the exchange counts in a merge: its training samples, as often as it was drawn."""
    merge: Merge = field(default_factory=Merge)

    def get(self, address: Address) -> Block:
        """Return a block as it was sent."""
        return self.pool.get(address)

    def merged(self, origins: Mapping[Address, Updates]) -> Block:
        """Return what becomes of updates that answer to one address or several: merged each, then their mean."""
        each: list[Contribution] = []
        for address, updates in sorted(origins.items()):
            own = [(u.blocks[address], self.weights[c], u.values) for c, u in sorted(updates.items())]
            merged = _fold(self.merge, address, self.get(address), own)
            each.append((merged, sum(weight for _, weight, _ in own), {}))
        return each[0][0] if len(each) == 1 else _fold(Merge(), min(origins), each[0][0], each)


@dataclass
class SharedBlocks:
    """The blocks that clients share: read as they are, and changed by these doors alone.

    A change clears what would lead to another block: the code by which it followed from its last version.
    """

    _pool: Pool
    _codes: dict[Address, Code] = field(default_factory=dict)
    """How blocks follow from their last version, where they travel as changes."""
    sent: Sent = field(default_factory=Sent)

    def __contains__(self, address: Address) -> bool:
        return address in self._pool

    def __iter__(self) -> Iterator[Address]:
        return iter(self._pool)

    def get(self, address: Address) -> Block:
        """Return the present version of a block."""
        return self._pool.get(address)

    def put(self, address: Address, block: Block) -> None:
        """Put a block that is no merge of updates: no code leads to it, and what the last one lost is not its own."""
        self._pool.put(address, block)
        self._codes.pop(address, None)

    def restart(self, address: Address, block: Block) -> None:
        """Put a block that does not go on from the present one, at an address of its own.

        All that is known of the old one, and what codecs lost of it, stays behind.
        """
        if not block.finite:
            self._pool.kept.append(address)
            return
        self.remove(address)
        self.put(address.anew(), block)

    def remove(self, address: Address) -> None:
        """Forget a block, and how it followed from its last version."""
        self._pool.remove(address)
        self._codes.pop(address, None)

    def merged(self, origins: Mapping[Address, Updates]) -> Block:
        """Return what `Sent.merged` does; if that is not finite, a block as it was sent."""
        merged = self.sent.merged(origins)
        if merged.finite:
            return merged
        self._pool.kept.append(min(origins))
        return self.sent.get(min(origins))

    def going_out(self, weights: Mapping[str, int], merge: Merge) -> None:
        """Remember the pool as it is when an exchange goes out, and what the answers will count."""
        self.sent = Sent(self._pool.copy(), weights, merge)


def _fold(merge: Merge, address: Address, present: Block, updates: Sequence[Contribution]) -> Block:
    """Return the next version of an address: exact, in any order of the updates."""
    fold = Fold(merge, {address: present}, {address: sum(weight for _, weight, _ in updates)})
    for block, weight, values in updates:
        fold.add({address: block}, {address: block.layout}, weight, values)
    return fold.finish()[address]


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


def filled(model: nn.Module, block: Block) -> nn.Module:
    """Return a copy of the model with the block's values in their places."""
    fresh = copy.deepcopy(model)
    fresh.load_state_dict(dict(block.tensors), strict=False)
    return fresh


def taken(model: nn.Module, like: Block) -> Block:
    """Return the model's values under the names of a block."""
    state = model.state_dict()
    return Block({name: state[name].detach().clone() for name in like.tensors}, like.buffers)


def descend(module: nn.Module, lr: float, losses: Iterable[Tensor]) -> None:
    """Take one step of plain gradient descent for every loss, as it comes."""
    weights = [weight for weight in module.parameters() if weight.requires_grad]
    optimiser = OPTIMISERS["sgd"](weights, Training(), lr)
    module.train()
    for loss in losses:
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
