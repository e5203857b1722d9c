"""PNG pictures of functional groups, teachers and their sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from intarsia.report.canvas import in_rounds, legend_beside, line_look, new_canvas, plain_bar, save_canvas
from intarsia.report.figures import lap_of
from intarsia.report.sections.pfedclub.teachers import Reassembly, Teacher
from intarsia.report.styles import plain_style, styles_of_names

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MARKERS = "osD^vP*XhH<>p8d"
"""One a functional group."""
SEAM = "#222222"
STITCH: dict[str, Any] = {
    "marker": "D", "linestyle": "", "markersize": 5, "markerfacecolor": "white", "markeredgecolor": SEAM,
}  # fmt: skip


def groups_picture(reassembly: Reassembly, title: str, path: Path) -> None:
    """Draw the blocks of the last round: near each other if they do alike work; a colour a client, a marker a group."""
    figure, axes = new_canvas(9.5, 5.8)
    spots = reassembly.spots
    clients = list(dict.fromkeys(spot.client for spot in spots))
    for number, client in enumerate(clients):
        colour, edge = plain_style(number).hex, SEAM if lap_of(number) else "none"
        axes.fill_between(
            [], [], facecolor=colour, edgecolor=edge, linewidth=1.5, label=reassembly.words(client)
        )
        look = {
            "color": colour,
            "markeredgecolor": edge,
            "markeredgewidth": 1.5,
            "markersize": 9,
            "alpha": 0.85,
        }
        for s in (s for s in spots if s.client == client):
            axes.plot(s.x, s.y, MARKERS[s.group % len(MARKERS)], **look)
            axes.annotate(str(s.place), (s.x, s.y), (6, 4), textcoords="offset points", fontsize=7)
    for group in sorted({s.group for s in spots}):
        marker = MARKERS[group % len(MARKERS)]
        axes.plot([], [], marker, markerfacecolor="none", markeredgecolor="black", label=f"group {group + 1}")
    axes.set(
        title=f"{title}: blocks of round {reassembly.groups['round']}, by likeness", xticks=[], yticks=[]
    )
    axes.set_xlabel("numbers: a block's place in its model")
    legend_beside(axes)
    save_canvas(figure, path)


def strips_picture(reassembly: Reassembly, title: str, path: Path) -> None:
    """Draw clients' last teachers as strips: a colour a donor, a line where pieces meet, a diamond a tuned stitch."""
    shown, donors = reassembly.teachers, reassembly.donors
    longest = max(len(teacher.pieces) for teacher in shown)
    figure, axes = new_canvas(0.42 * longest + 5.5, max(2.5, 0.34 * len(shown) + 1.2))
    for row, teacher in enumerate(shown):
        _strip(axes, -row, teacher, donors)
        axes.text(len(teacher.pieces) + 0.2, -row, f"{100 * teacher.growth:+.0f} %", va="center", fontsize=7)
    for number, donor in enumerate(donors):
        axes.fill_between([], [], **plain_bar(number), label=reassembly.words(donor))
    axes.plot([], [], **STITCH, label="tuned stitch")
    names = [f"{reassembly.words(t.client)}, round {t.round}" for t in shown]
    axes.set_yticks([-row for row in range(len(shown))], names, fontsize=7)
    axes.set(xlim=(-0.2, longest + 1.6), ylim=(0.4 - len(shown), 0.6), xticks=[])
    axes.set_title(f"{title}: last teachers, block by block")
    axes.set_xlabel("right: how much larger than the client's model")
    legend_beside(axes, fontsize=7, title="blocks of")
    save_canvas(figure, path)


def _strip(axes: Axes, y: float, teacher: Teacher, donors: list[str]) -> None:
    for at, piece in enumerate(teacher.pieces):
        look = plain_bar(donors.index(piece.donor))
        axes.barh(y, 0.94, left=at + 0.03, height=0.72, **look)
        box = {"facecolor": look["facecolor"], "edgecolor": "none", "pad": 1}
        axes.text(
            at + 0.5, y, str(piece.place), ha="center", va="center", fontsize=7, color="white", bbox=box
        )
        if piece.seam:
            axes.plot([at, at], [y - 0.45, y + 0.45], color=SEAM, linewidth=2.4)
    axes.plot(teacher.stitched, [y] * len(teacher.stitched), **STITCH)


def phi_picture(reassembly: Reassembly, title: str, path: Path) -> None:
    """Draw every client's phi (eq. 6) by round: 0 is a teacher as large as the client's model."""
    figure, axes = new_canvas(10, 5.2)
    axes.axhline(0, color="black", linewidth=0.8)
    axes.set(title=f"{title}: size of teachers, mean so far", ylabel="phi")
    _lines(axes, {reassembly.words(client): points for client, points in reassembly.phi.items()})
    save_canvas(figure, path)


def scores_picture(reassembly: Reassembly, title: str, path: Path) -> None:
    """Draw how often teachers, and the clients that they teach, are right on the clients' training data."""
    figure, axes = new_canvas(10, 5.2)
    axes.set(title=f"{title}: what teachers know", ylabel="right, share of a client's training samples")
    _lines(axes, reassembly.teacher_scores)
    save_canvas(figure, path)


def _lines(axes: Any, lines: Mapping[str, Sequence[tuple[int, float]]]) -> None:
    """Draw lines over rounds."""
    styles = styles_of_names(list(lines))
    for name, points in lines.items():
        rounds, values = zip(*points, strict=True)
        axes.plot(rounds, values, **line_look(styles[name]), markersize=3, label=name)
    in_rounds(axes)
    axes.yaxis.set_major_formatter("{x:.0%}")
    axes.grid(axis="y", alpha=0.3)
    legend_beside(axes, fontsize=7)
