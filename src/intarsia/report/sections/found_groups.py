"""ModFL, clustered FL: groups of clients that were found."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from intarsia.experiment import Run
from intarsia.report.figures import Figure, chart
from intarsia.report.sections.base import Part, Section

WORDS = "<p>The group of every client after each round; white: not in a group that was found.</p>"


@dataclass(frozen=True)
class FoundGroups(Section):
    """Who was in which group, round by round, of a run in which clients changed groups."""

    clients: Sequence[str]
    rounds: int
    moves: Sequence[Mapping[str, Any]]
    """Who changed groups, and when."""

    @classmethod
    def read(cls, run: Run) -> Self | None:
        """Return the section of a run in which somebody moved."""
        if not (moves := run.groups):
            return None
        everyone = run.population.get("clients", {}) or {move["client"] for move in moves}
        return cls(sorted(everyone), run.summary["rounds"], moves)

    def parts(self, label: str) -> list[Part]:
        """Return the picture, a row a client and a colour a group."""
        return [(f"Groups found: {html.escape(label)}", WORDS + chart(self.figure()))]

    def figure(self) -> Figure:
        """Draw each client's group by round."""
        names = sorted({m["group"] for m in self.moves})
        rounds = list(range(1, self.rounds + 1))
        now: dict[str, str] = {}
        columns = []
        for round in rounds:
            now |= {m["client"]: m["group"] for m in self.moves if m["round"] == round}
            columns.append([now.get(client) for client in self.clients])
        rows = list(zip(*columns, strict=True))
        figure = Figure("round", "", height=max(320, 16 * len(self.clients) + 100), key=False)
        figure.add(
            "heatmap",
            x=rounds,
            y=list(self.clients),
            z=[[None if group is None else names.index(group) for group in row] for row in rows],
            text=[[group or "-" for group in row] for row in rows],
            hovertemplate="%{y}, round %{x}: %{text}<extra></extra>",
            colorscale="Turbo",
            showscale=False,
            xgap=1,
            ygap=1,
        )
        figure.axis("xaxis", tickformat="d")
        return figure
