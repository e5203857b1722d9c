"""The pool as a method sees it on the server."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from intarsia.blocks import Address, Block, Code, Pool


@dataclass
class SharedBlocks:
    """The blocks that clients share: read as they are, and changed by these doors alone.

    A change clears what would lead to another block: the code by which it followed from its last version.
    """

    _pool: Pool
    _codes: dict[Address, Code] = field(default_factory=dict)
    """How blocks follow from their last version, where they travel as changes."""
    sent: Pool = field(default_factory=Pool)
    """The pool as it was when the last exchange went out."""

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
            self.keep(address)
            return
        self.remove(address)
        self.put(address.anew(), block)

    def remove(self, address: Address) -> None:
        """Forget a block, and how it followed from its last version."""
        self._pool.remove(address)
        self._codes.pop(address, None)

    def keep(self, address: Address) -> Block:
        """Return a block as it was sent, and note that what came in its place could not be taken."""
        self._pool.kept.append(address)
        return self.sent.get(address)

    def going_out(self) -> None:
        """Remember the pool as it is when an exchange goes out."""
        self.sent = self._pool.copy()
