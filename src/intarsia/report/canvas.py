"""What PNG pictures are drawn on, in the colours of pages; legends stand beside what is drawn, rounds are whole."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from intarsia.report.styles import Style, plain_style, theme

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import LinearSegmentedColormap
    from matplotlib.figure import Figure

DASHES = {"solid": "-", "dash": "--", "dot": ":", "dashdot": "-.", "longdash": (0, (8, 3))}
MARKS = {"circle": "o", "square": "s", "diamond": "D", "triangle-up": "^", "x": "X"}
HATCHES = {"solid": "", "dash": "///", "dot": "...", "dashdot": "xxx", "longdash": "\\\\\\"}
"""What styles of pages are in pictures: of lines, of points and of bars."""


def new_canvas(width: float, height: float, columns: int = 1) -> tuple[Figure, Any]:
    """Return a figure and its axes, side by side."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(min(width, 40), min(height, 40)), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(1, columns)
    for own in axes if columns > 1 else [axes]:
        own.spines[["top", "right"]].set_visible(False)
    return figure, axes


def save_canvas(figure: Figure, path: Path) -> None:
    """Write a figure as a PNG file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, format="png")


def legend_beside(axes: Axes, **own: Any) -> None:
    """Say what is drawn to the right of it, never upon it."""
    axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1), frameon=False, **{"fontsize": 8, **own})


def in_rounds(axes: Axes) -> None:
    """Let the axis across count in whole rounds."""
    axes.set_xlabel("round")
    in_whole_numbers(axes)


def in_whole_numbers(axes: Axes) -> None:
    """Let the axis across have no ticks between whole numbers."""
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(integer=True))


def line_look(style: Style) -> dict[str, Any]:
    """Return what a style is as a line."""
    return {"color": style.hex, "linestyle": DASHES[style.dash], "marker": MARKS[style.symbol]}


def bar_look(style: Style) -> dict[str, Any]:
    """Return what a style is as a bar."""
    return {"facecolor": style.hex, "hatch": HATCHES[style.dash], "edgecolor": "white", "linewidth": 0}


def plain_bar(number: int) -> dict[str, Any]:
    """Return the look of the n-th of several bars that are no methods."""
    return bar_look(plain_style(number))


def ramp(name: str) -> LinearSegmentedColormap:
    """Return a ramp of the theme, `labels` or `heat`."""
    from matplotlib.colors import LinearSegmentedColormap

    stops: Sequence[str] = theme("light")[name]
    return LinearSegmentedColormap.from_list(name, list(stops))
