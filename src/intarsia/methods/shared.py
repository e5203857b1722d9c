"""The pool as a method sees it on the server."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from intarsia.blocks import Address, Block, Code, Fold, Merge, Pool, Update

Updates = Mapping[str, Update]
"""Updates with their blocks, by client."""


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
        folds = {address: self._fold(address, own) for address, own in sorted(origins.items())}
        if len(folds) == 1:
            return next(iter(folds.values()))
        weights = {address: sum(self.weights[client] for client in own) for address, own in origins.items()}
        first, present = next(iter(folds.items()))
        mean = Fold(Merge(), {first: present}, {first: sum(weights.values())})
        for address, block in folds.items():
            mean.add({first: block}, {first: block.layout}, weights[address], {})
        return mean.finish()[first]

    def _fold(self, address: Address, updates: Updates) -> Block:
        """Return the next version of an address: exact, in any order of the updates."""
        planned = sum(self.weights[client] for client in updates)
        fold = Fold(self.merge, {address: self.get(address)}, {address: planned})
        for client, update in updates.items():
            block = update.blocks[address]
            fold.add({address: block}, {address: block.layout}, self.weights[client], update.values)
        return fold.finish()[address]


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
