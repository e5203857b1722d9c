"""The picture of the README: five ways to share, who shares which block in each, and what came of it.

`python -m benchmarks.pictures` plays them (half a minute) and writes docs/pictures/hero.png; `--runs FOLDER` keeps
the runs there, and takes those that are there already.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import intarsia
from intarsia.core.text import percent, size
from intarsia.report.assemblies import assemblies_of, left_out_by
from intarsia.report.canvas import save_canvas
from intarsia.report.mosaic import Mosaic, mosaic_of
from intarsia.report.mosaic_picture import INK, draw_tiles
from intarsia.report.run_view import RunView, view

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PICTURE = Path("docs/pictures/hero.png")
PLAYED = {
    "local": ("quickstart", "nothing"),
    "fedavg": ("quickstart", "the whole model, with the same sensor"),
    "fedper": ("quickstart", "all but the head"),
    "modfl": ("quickstart", "input side by sensor, output side by cohort"),
    "fedmn+": ("module-pool", "modules of a pool, as each client's data need"),
}
"""Methods with the recipe that each is played in, and what its clients share."""
ORDER = "modfl"
"""By whose mosaic clients stand side by side in all of them."""
WIDTH, LEFT, RIGHT, ROW, BETWEEN, TOP = 11.0, 3.35, 0.95, 0.235, 0.27, 0.5
"""Inches: of the picture, beside the tiles, of a row, between methods, and above them."""
FAINT = "#595959"


@dataclass(frozen=True)
class Shown:
    """A method as it is drawn."""

    words: str
    view: RunView
    mosaic: Mosaic


def play(folder: Path) -> dict[str, RunView]:
    """Return the runs, played where the folder does not have them."""
    found = {}
    for method, (recipe, _) in PLAYED.items():
        path = folder / method
        run = (
            intarsia.open_run(path)
            if path.exists()
            else intarsia.run(recipe, changes=[f"method={method}"], out=path)
        )
        found[method] = view(run)
    return found


def shown_of(views: dict[str, RunView]) -> list[Shown]:
    """Return the methods with their mosaics, clients in one order."""
    mosaics = {name: _mosaic(own) for name, own in views.items()}
    order = mosaics[ORDER].clients
    return [Shown(PLAYED[name][1], own, _ordered(mosaics[name], order)) for name, own in views.items()]


def _mosaic(own: RunView) -> Mosaic:
    found = assemblies_of(own.run, left_out_by(own.sections))
    assert found is not None
    return mosaic_of(found)


def _ordered(mosaic: Mosaic, clients: Sequence[str]) -> Mosaic:
    """Return a mosaic with its clients in another order; only what is now."""
    places = [mosaic.clients.index(client) for client in clients]
    tiles = [[row[place] for place in places] for row in mosaic.tiles]
    return Mosaic(list(clients), mosaic.rows, mosaic.groups, [(0, tiles)])


def draw(shown: Sequence[Shown], path: Path) -> None:
    """Draw methods one below the other: name, what is shared, tiles, mean accuracy and bytes."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    rows = sum(len(own.mosaic.rows) for own in shown)
    height = TOP + ROW * rows + BETWEEN * len(shown) + 0.2
    figure = Figure(figsize=(WIDTH, height), dpi=130, facecolor="white")
    FigureCanvasAgg(figure)
    top = height - TOP
    _heads(figure.add_axes((0, 0, 1, 1)), height, len(shown[0].mosaic.clients))
    for own in shown:
        high = ROW * len(own.mosaic.rows)
        box = (LEFT / WIDTH, (top - high) / height, (WIDTH - LEFT - RIGHT) / WIDTH, high / height)
        _method(figure.add_axes(box), own)
        top -= high + BETWEEN
    save_canvas(figure, path)


def _heads(axes: Axes, height: float, clients: int) -> None:
    axes.axis("off")
    y = (height - 0.3) / height
    look: dict[str, Any] = {"color": FAINT, "fontsize": 9.5, "va": "center"}
    axes.text(0.012, y, "Method, and what is shared", **look)
    axes.text(
        LEFT / WIDTH, y, f"{clients} clients, a column each: one colour in a row is one shared block", **look
    )
    axes.text((WIDTH - 0.12) / WIDTH, y, "accuracy, sent", ha="right", **look)
    axes.text(
        LEFT / WIDTH, 0.2 / height, "Hatched: never leaves its client. Dotted: left out of its model.", **look
    )


def _method(axes: Axes, own: Shown) -> None:
    wide = WIDTH - LEFT - RIGHT
    draw_tiles(axes, own.mosaic, wide)
    axes.tick_params(labelsize=8, labelcolor=FAINT)
    inch = len(own.mosaic.clients) / wide
    x, y = (0.13 - LEFT) * inch, 0.5
    axes.text(
        x, y, own.view.label.removesuffix(" (ours)"), color=INK, fontsize=12, fontweight="bold", va="center"
    )
    lines = _broken(own.words, 26 if len(own.mosaic.rows) > 1 else 40)
    axes.text(x, 1.05, lines, color=FAINT, fontsize=8.5, va="top", linespacing=1.25)
    right = len(own.mosaic.clients) + (RIGHT - 0.12) * inch
    mean = percent(own.view.summary["accuracy"]["mean"])
    axes.text(right, y, mean, color=INK, fontsize=12, fontweight="bold", ha="right", va="center")
    axes.text(right, 1.05, size(own.view.sent), color=FAINT, fontsize=8.5, ha="right", va="top")


def _broken(words: str, most: int) -> str:
    import textwrap

    return "\n".join(textwrap.wrap(words, most))


def main() -> None:
    """Play and draw."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=Path, default=None, help="where runs are kept")
    parser.add_argument("--out", type=Path, default=PICTURE)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        draw(shown_of(play(asked.runs or Path(scratch))), asked.out)
    print(f"{asked.out}: {asked.out.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
