"""All that a run is between two rounds."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from intarsia.blocks import Address, Code, Pool
from intarsia.methods import Groups
from intarsia.runs.manifests import TABLES
from intarsia.runs.records import Records


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
        )

    def shared(self) -> set[str]:
        """Return the versions of all blocks that this state names beside those of its clients."""
        initial = {v for blocks in self.initial.values() for v in blocks.values()}
        codes = {b.version for c in self.codes.values() for b in (c.base, c.change, c.lost)}
        return {block.version for block in self.pool.blocks()} | initial | codes
