"""The mosaic of a run as a PNG file."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

from intarsia.report.canvas import new_canvas, save_canvas
from intarsia.report.mosaic import ALONE, EVERYONE, NONE, OUT, OWN, WORDS, Mosaic
from intarsia.report.pictures import short_name

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.patches import FancyBboxPatch

TILES = ("#6ea6da", "#e9885f", "#45b596", "#ecd06f", "#f19fb4", "#b6c244", "#8fd6f2", "#b79ad6")
"""Colours of groups: light enough to be written upon, and told apart by those who see few colours."""
PLAIN = {NONE: "#ffffff", OWN: "#ffffff", ALONE: "#ffffff", OUT: "#ffffff", EVERYONE: "#d5cec2"}
HATCHED = {OWN: "////", ALONE: "...."}
INK, EDGE = "#2b2723", "#8d857a"
WIDTH, LETTER = 10.0, 0.08
"""Inches: of the picture, and of a letter."""
MOST_NAMED = 48
"""Clients up to which each is named."""


def draw_mosaic(mosaic: Mosaic, path: Path, title: str = "") -> None:
    """Draw a mosaic, as it is now: a column a client, a row a block."""
    high = max(0.22, min(0.62, 6 / len(mosaic.rows)))
    named = len(mosaic.clients) <= MOST_NAMED
    figure, axes = new_canvas(WIDTH, high * len(mosaic.rows) + (1.6 if named else 1.0) + 0.3 * bool(title))
    figure.set_dpi(160)
    draw_tiles(axes, mosaic, WIDTH - 1.5)
    places = [n + 0.5 for n in range(len(mosaic.clients))] if named else []
    axes.set_xticks(places, [short_name(name) for name in mosaic.clients] if named else [], rotation=90)
    if not named:
        axes.set_xlabel(f"{len(mosaic.clients)} clients", color=INK)
    axes.set_title(short_name(title, 90), color=INK, loc="left", fontsize=12)
    _draw_key(axes, mosaic)
    save_canvas(figure, path)


def draw_tiles(axes: Axes, mosaic: Mosaic, wide: float) -> None:
    """Draw the tiles of a mosaic, so many inches wide, with the names of its rows."""
    for number, row in enumerate(mosaic.tiles):
        _draw_row(axes, mosaic, row, number, wide / len(row))
    axes.set_xlim(0, len(mosaic.clients))
    axes.set_ylim(len(mosaic.rows), 0)
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0, labelcolor=INK, labelsize=9)
    axes.set_yticks([n + 0.5 for n in range(len(mosaic.rows))], [short_name(row.name) for row in mosaic.rows])
    axes.set_xticks([])


def _draw_row(axes: Axes, mosaic: Mosaic, row: list[int], number: int, inch: float) -> None:
    """Draw the patches of a row, each tile so wide, and say in each whose it is where there is room."""
    gap = min(0.06 / inch, 0.2)
    start = 0
    for colour, own in groupby(row):
        count = len(list(own))
        axes.add_patch(_tile(colour, start + gap / 2, number + 0.06, count - gap, 0.88))
        if inch > 0.1:
            lines = range(start + 1, start + count)
            axes.vlines(lines, number + 0.06, number + 0.94, color="white", linewidth=0.6, alpha=0.6)
        text = _words(mosaic, row, colour)
        if text and len(text) * LETTER < count * inch:
            box = {"facecolor": _tile(colour, 0, 0, 1, 1).get_facecolor(), "edgecolor": "none", "pad": 1}
            where = (start + count / 2, number + 0.5)
            axes.text(*where, text, ha="center", va="center", fontsize=9, color=INK, bbox=box)
        start += count


def _words(mosaic: Mosaic, row: list[int], colour: int) -> str:
    """Return what is written upon tiles of a colour; nothing upon those that nobody shares."""
    if colour == EVERYONE:
        return "shared" if OUT in row else "everyone"
    return short_name(mosaic.name(colour), 24) if colour >= len(WORDS) else ""


def _tile(colour: int, x: float, y: float, width: float, height: float) -> FancyBboxPatch:
    from matplotlib.patches import FancyBboxPatch

    shape = f"round,pad=0,rounding_size={min(0.08, width / 4)}"
    if colour >= len(WORDS):
        number = colour - len(WORDS)
        lap = ("", "\\\\\\", "xxx")[number // len(TILES) % 3]
        face, edge, hatch = TILES[number % len(TILES)], "#ffffff" if lap else "none", lap
    else:
        face, edge, hatch = PLAIN[colour], EDGE if colour in HATCHED else "none", HATCHED.get(colour, "")
    tile = FancyBboxPatch(
        (x, y), width, height, boxstyle=shape, facecolor=face, edgecolor=edge, hatch=hatch, linewidth=0.6
    )
    if colour == OUT:
        tile.set(linestyle=":", edgecolor=EDGE)
    return tile


def _draw_key(axes: Axes, mosaic: Mosaic) -> None:
    """Say what every colour stands for, below the tiles."""
    shown = [colour for colour in mosaic.key if colour != NONE][:24]
    handles = [_tile(colour, 0, 0, 1, 1) for colour in shown]
    names = [short_name(mosaic.name(colour), 24) for colour in shown]
    axes.figure.legend(
        handles,
        names,
        loc="outside lower center",
        ncols=min(6, len(shown)),
        frameon=False,
        fontsize=9,
        labelcolor=INK,
    )
