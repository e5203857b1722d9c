"""FedMN: networks that clients assembled from a pool of modules."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from intarsia.experiment.run_record import RunRecord
from intarsia.report.pictures import draw_all
from intarsia.report.sections.base import Part, Section
from intarsia.report.sections.fedmn.decisions import Decisions, read_decisions
from intarsia.report.sections.fedmn.networks import network
from intarsia.report.sections.fedmn.page import parts
from intarsia.report.sections.fedmn.pictures import clusters_picture, networks_picture, use_picture


@dataclass(frozen=True)
class AssembledNetworks(Section):
    """Networks, use of blocks, clusters, global loss and payload of a run that noted its clients' decisions."""

    decisions: Decisions

    @classmethod
    def read(cls, run: RunRecord) -> Self | None:
        """Return the section of a run in which clients decided."""
        found = read_decisions(run)
        return None if found is None else cls(found)

    def parts(self, label: str) -> list[Part]:
        """Return what a page shows."""
        return parts(label, self.decisions)

    def links(self) -> dict[str, Sequence[tuple[str, str]]]:
        """Return the links of every client's network after the last round."""
        layers = self.decisions.layers
        return {client: network(layers, own).links for client, own in self.decisions.final.items()}

    def unused(self) -> dict[int, dict[str, frozenset[str]]]:
        """Return the blocks of the pool that clients' networks do not pass through."""
        return self.decisions.unused

    def pictures(self, title: str, folder: Path) -> list[Path]:
        """Draw networks, use of blocks and clusters."""
        draw = {"networks": networks_picture, "use": use_picture, "clusters": clusters_picture}
        return draw_all(draw, self.decisions, title, folder)
