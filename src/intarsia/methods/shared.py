"""The pool as a method sees it on the server."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from intarsia.blocks import Address, Block, Code, Fold, Merge, Pool, Update, Values

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
