"""Runs with a defence: how often each client's updates were refused, scaled back or far, and who was left out."""

from __future__ import annotations

import html
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from intarsia.experiment.run_record import RunRecord
from intarsia.report.elements import html_table
from intarsia.report.sections.base import Part, Section
from intarsia.trust.reputation import CLIPPED, FAR, LEFT_OUT, REFUSED

WORDS = (
    "<p>In how many exchanges a client's update was refused, scaled back to the norm bound, or far from what was "
    "merged of its group; and since which round it is left out. Clients without any are not named.</p>"
)


@dataclass(frozen=True)
class Reputations(Section):
    """What was noted of clients, of a run in which updates were bounded or compared."""

    counts: Mapping[str, Counter[str]]
    left_out: Mapping[str, int]
    """Since which round clients are left out."""

    @classmethod
    def read(cls, run: RunRecord) -> Self | None:
        """Return the section of a run that noted something of the kind."""
        noted = [e for e in run.events if e["kind"] in (REFUSED, CLIPPED, FAR, LEFT_OUT) and e["client"]]
        if not any(event["kind"] != REFUSED for event in noted):
            return None
        once = {(e["client"], e["kind"], e["round"], e["exchange"]) for e in noted}
        counts = {client: Counter[str]() for client in sorted({event["client"] for event in noted})}
        for client, kind, _, _ in once:
            counts[client][kind] += 1
        return cls(counts, {e["client"]: e["round"] for e in noted if e["kind"] == LEFT_OUT})

    def parts(self, label: str) -> list[Part]:
        """Return a table, a row a client, those with the most marks first."""
        order = sorted(self.counts, key=lambda client: (-self.counts[client].total(), client))
        rows = [
            [
                client,
                *(str(self.counts[client][kind]) for kind in (REFUSED, CLIPPED, FAR)),
                f"round {self.left_out[client]}" if client in self.left_out else "",
            ]
            for client in order
        ]
        table = html_table(["client", "refused", "scaled back", "far", "left out after"], rows)
        return [(f"Reputation: {html.escape(label)}", WORDS + table)]
