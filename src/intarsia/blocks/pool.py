"""The server's blocks by address. A version is the hash of the content."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from intarsia.blocks.address import Address
from intarsia.blocks.block import Block
from intarsia.core import AddressError, Refused


class Pool:
    """Present blocks by address; copying a pool is cheap, because blocks never change."""

    def __init__(self, blocks: dict[Address, Block] | None = None) -> None:
        self._blocks: dict[Address, Block] = dict(blocks or {})
        self.kept: list[Address] = []
        """Where a version was not taken because it was not finite, and the present one was kept."""

    def __contains__(self, address: Address) -> bool:
        return address in self._blocks

    def __iter__(self) -> Iterator[Address]:
        return iter(sorted(self._blocks))

    def __len__(self) -> int:
        return len(self._blocks)

    def blocks(self) -> Collection[Block]:
        """Return all present blocks, in no order."""
        return self._blocks.values()

    def get(self, address: Address) -> Block:
        """Return the present block of an address."""
        try:
            return self._blocks[address]
        except KeyError:
            known = ", ".join(str(a) for a in self) or "none"
            raise AddressError(f"the pool has no block at {address}; it has: {known}") from None

    def put(self, address: Address, block: Block) -> str:
        """Make this block the present one, and return the present version.

        The one door: a block with a NaN or an infinity never comes in. The present one is kept, and that is noted.
        """
        if address.private:
            raise AddressError(f"{address} stays with its client: it cannot be put into the pool")
        if block.finite:
            self._blocks[address] = block
        elif address in self._blocks:
            self.kept.append(address)
        else:
            raise Refused(f"the first version of {address} holds a NaN or an infinity", block=address.block)
        return self._blocks[address].version

    def present(self, address: Address) -> Address:
        """Return where the block of an address lies now: there, or where it went when it was restarted."""
        if address.private or address in self._blocks:
            return address
        alike = (other for other in self._blocks if other.original == address.original)
        return max(alike, default=address)

    def remove(self, address: Address) -> None:
        """Forget an address that nobody shares any more."""
        self._blocks.pop(address, None)

    def version(self, address: Address) -> str:
        """Return the version of the present block."""
        return self.get(address).version

    def copy(self) -> Pool:
        """Return a pool that can be changed without changing this one."""
        return Pool(self._blocks)

    @property
    def nbytes(self) -> int:
        """Bytes of all present blocks."""
        return sum(block.nbytes for block in self._blocks.values())
