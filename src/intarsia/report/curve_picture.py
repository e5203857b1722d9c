"""The curves of runs as a PNG file: every method in the colour that it has on pages."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from intarsia.report.canvas import in_rounds, legend_beside, line_look, new_canvas, save_canvas
from intarsia.report.curves import ACCURACY, OverSeeds, over_seeds
from intarsia.report.figures import MOST_BANDS, MOST_MARKED
from intarsia.report.pictures import short_name
from intarsia.report.run_view import RunView
from intarsia.report.series import Kind, Series, kinds_of, series_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def curve_picture(views: Sequence[RunView], path: Path, title: str = "") -> None:
    """Draw accuracy, or the loss where there is none, by round: the mean over clients, and over seeds."""
    series = series_of(views)
    kinds = kinds_of(series)
    figure, grid = new_canvas(6 * max(1, len(kinds)) + 3, 4.8, columns=max(1, len(kinds)))
    for axes, kind in zip(grid if len(kinds) > 1 else [grid], kinds, strict=False):
        draw_curves(axes, series, kind)
    if kinds:
        legend_beside(grid[-1] if len(kinds) > 1 else grid)
    figure.suptitle(short_name(title, 90), x=0.01, ha="left", fontsize=12)
    save_canvas(figure, path)


def draw_curves(axes: Axes, series: Sequence[Series], kind: Kind) -> None:
    """Draw a task's lines; of few experiments, with the 10th to the 90th percentile of their clients."""
    task, measure = kind
    drawn = [
        (own, over_seeds([curve for _, curve in own.curves[kind]])) for own in series if kind in own.curves
    ]
    for own, said in drawn:
        _draw(axes, own, said, len(drawn) <= MOST_BANDS)
    in_rounds(axes)
    axes.set_ylabel(f"mean {measure} of clients' own models")
    axes.set_title(f"task {short_name(task, 40)}" if task else "", loc="left", fontsize=10)
    axes.grid(axis="y", alpha=0.3)
    if measure == ACCURACY:
        axes.yaxis.set_major_formatter("{x:.0%}")


def _draw(axes: Axes, own: Series, said: OverSeeds, with_clients: bool) -> None:
    marks = {"markersize": 3} if len(said.rounds) <= MOST_MARKED else {"marker": None}
    axes.plot(said.rounds, said.mean, **{**line_look(own.style), **marks}, label=short_name(own.title, 40))
    if len(own.views) > 1:
        axes.fill_between(
            said.rounds, said.lowest, said.highest, color=own.style.hex, alpha=0.25, linewidth=0
        )
    if with_clients:
        axes.fill_between(said.rounds, said.low, said.high, color=own.style.hex, alpha=0.1, linewidth=0)
