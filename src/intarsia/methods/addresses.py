"""Who shares what: where each block of each client lives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from intarsia.blocks import Address, Pool

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
