"""PNG pictures of clients' networks, of how blocks were used, and of clusters."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from intarsia.report.canvas import new_canvas, ramp, save_canvas
from intarsia.report.elements import evenly
from intarsia.report.sections.fedmn.decisions import MOMENTS, Decisions, contingency, matches
from intarsia.report.sections.fedmn.networks import ACTIVE, IDLE, LINK, OUT, network_sheet

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def networks_picture(decisions: Decisions, title: str, path: Path) -> None:
    """Draw clients' own networks after the last round: blocks that take part are filled, the output is a square."""
    sheet = network_sheet(decisions)
    figure, axes = new_canvas(0.55 * sheet.width, 0.3 * sheet.height + 0.4)
    for start, end in sheet.lines:
        axes.plot([start.x, end.x], [start.y, end.y], color=LINK, linewidth=1.2, zorder=1)
    dots = ((sheet.idle, IDLE, "o"), (sheet.active, ACTIVE, "o"), (sheet.outputs, OUT, "s"))
    for spots, colour, marker in dots:
        axes.scatter([s.x for s in spots], [s.y for s in spots], s=45, color=colour, marker=marker, zorder=2)
    for spot in sheet.titles:
        axes.text(spot.x, spot.y, spot.name, ha="center", fontsize=6.5)
    x, y = sheet.window
    axes.set(xlim=x, ylim=y, title=f"{title}: {len(sheet.titles)} of {len(decisions.clients)} clients")
    axes.axis("off")
    save_canvas(figure, path)


def use_picture(decisions: Decisions, title: str, path: Path) -> None:
    """Draw in which share of the rounds so far each client's own network had each block, at a few rounds."""
    moments, clients, blocks = evenly(decisions.rounds, MOMENTS), decisions.clients, decisions.blocks
    wide = (0.25 * len(blocks) + 0.4) * len(moments)
    high = max(0.03, min(0.16, 9 / len(clients)))
    figure, grid = new_canvas(wide + 2.5, high * len(clients) + 2, columns=len(moments))
    panels = np.atleast_1d(grid)
    for axes, moment in zip(panels, moments, strict=True):
        image = axes.imshow(decisions.use(moment), cmap=ramp("heat"), vmin=0, vmax=1, aspect="auto")
        axes.set_title(f"to round {moment}", fontsize=9)
        axes.set_xticks(range(len(blocks)), blocks, rotation=90, fontsize=7)
        axes.set_yticks([])
    step = round(max(1, 0.12 / high))
    names = [f"{client} ({decisions.cohorts[client] or '-'})" for client in clients[::step]]
    panels[0].set_yticks(range(0, len(clients), step), names, fontsize=6)
    figure.colorbar(image, ax=list(panels), label="share of rounds so far")
    figure.suptitle(title)
    save_canvas(figure, path)


def clusters_picture(decisions: Decisions, title: str, path: Path) -> None:
    """Draw how many clients of each true cohort are in each group of equal, or alike, decisions."""
    found = matches(decisions)
    cohorts = sorted({decisions.cohorts[client] for client in decisions.clients})
    wide = max(8.0, 0.3 * len(set(decisions.clusters.values())) * len(found))
    figure, panels = new_canvas(wide, 0.35 * len(cohorts) + 1.8, columns=len(found))
    for axes, match in zip(panels, found, strict=True):
        _counts(axes, contingency(decisions.cohorts, match.groups))
        axes.set_yticks(range(len(cohorts)), [cohort or "-" for cohort in cohorts])
        rand = "" if match.rand is None else f"\nadjusted Rand index {match.rand:.3f}"
        axes.set_title(f"{match.title}{rand}", fontsize=9)
        axes.set_xlabel("group")
    figure.suptitle(title)
    save_canvas(figure, path)


def _counts(axes: Axes, counts: Sequence[Sequence[int]]) -> None:
    most = max(map(max, counts))
    axes.imshow(counts, cmap=ramp("heat"), vmin=0, aspect="auto")
    axes.set_xticks(range(len(counts[0])), [str(group + 1) for group in range(len(counts[0]))])
    for (row, column), n in np.ndenumerate(np.asarray(counts)):
        if n:
            colour = "white" if n > most / 2 else "black"
            axes.text(column, row, str(n), ha="center", va="center", color=colour, fontsize=8)
