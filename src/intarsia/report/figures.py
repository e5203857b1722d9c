"""Charts of pages, as data: the page's script draws them, in the colours of its theme."""

from __future__ import annotations

import html
import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from intarsia.report.elements import evenly
from intarsia.report.styles import Style, plain_style, series, styles_of_names

HEIGHT = 380
MOST_POINTS = 300
"""How many points of a line are drawn."""
MOST_MARKED = 30
"""How many points a line has at most whose every point is marked."""
MOST_SERIES = 8
"""How many lines are drawn in colours of their own; more are grey until they are asked for."""
MOST_BANDS = 3
"""How many bands of a kind are drawn at once; of more, these are shown when they are asked for."""
Points = Iterable[tuple[float, float]]
Band = tuple[Sequence[float], Sequence[float]]


@dataclass(frozen=True)
class Line:
    """Points that belong together, by what they are called and how they look; maybe with bands about them."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    style: Style
    bands: Mapping[str, Band] = field(default_factory=dict)
    """Low and high ends about the points, by what they are."""
    rounds: Sequence[int] = ()
    """The round of each point, where x is something else."""


@dataclass
class Figure:
    """A chart: traces and axes in the words of plotly.js; a colour may be one of the theme's, as `--series-1`."""

    x: str = ""
    y: str = ""
    """What stands above the chart: what is drawn upwards."""
    words: str = ""
    """What those are told who cannot see it."""
    height: float = HEIGHT
    shares: bool = False
    """Whether what is drawn upwards are shares, from 0 to 1."""
    key: bool = True
    """Whether names of traces stand below it."""
    bands: dict[str, bool] = field(default_factory=dict)
    """What bands about lines are, in words, and whether they are shown at first; they can be switched on and off."""
    traces: list[dict[str, Any]] = field(default_factory=list)
    layout: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.layout = {"xaxis": {"title": self.x}, "yaxis": {}, **self.layout}
        if self.shares:
            self.layout["yaxis"]["tickformat"] = ".2~%"

    def add(self, kind: str, **trace: Any) -> None:
        """Draw something more: `scatter`, `bar`, `box`, `heatmap`."""
        self.traces.append({"type": kind, **trace})

    def axis(self, name: str, **own: Any) -> None:
        """Say more of an axis, `xaxis` or `yaxis`."""
        self.layout[name] |= own


def colour(number: int) -> str:
    """Return a colour of the theme for the n-th of several things, from 0."""
    return plain_style(number).word


def lap_of(number: int) -> int:
    """Return how often the colours have begun anew before the n-th of several things."""
    return number // series()


def lines_figure(y: str, lines: Iterable[tuple[str, Points]], x: str = "round", **about: Any) -> Figure:
    """Draw named lines of points; y are shares unless told otherwise."""
    named = [(name, list(points)) for name, points in lines]
    styles = styles_of_names([name for name, _ in named])
    own = [Line(name, [x for x, _ in at], [y for _, y in at], styles[name]) for name, at in named]
    return curves_figure(y, own, x, **about)


def curves_figure(y: str, lines: Sequence[Line], x: str = "round", **about: Any) -> Figure:
    """Draw lines with their bands; y are shares unless told otherwise. Of many, the first are in colours."""
    figure = Figure(x, y, **{"shares": True, "words": f"{y} by {x}", **about})
    if x == "round":
        count_in_rounds(figure, [round for line in lines for round in line.x])
    kinds = Counter(kind for line in lines for kind in line.bands)
    figure.bands = {kind: count <= MOST_BANDS for kind, count in kinds.items()}
    for number, line in enumerate(lines):
        _draw(figure, line, "grey" if number >= MOST_SERIES else "")
    return figure


def count_in_rounds(figure: Figure, rounds: Iterable[float]) -> None:
    """Let the axis across count in whole rounds, few as they may be."""
    figure.axis("xaxis", tickformat="d", rangemode="nonnegative", minallowed=0)
    if max(rounds, default=0) <= 8:
        figure.axis("xaxis", dtick=1)


def _draw(figure: Figure, line: Line, fold: str) -> None:
    at = evenly(range(len(line.x)), MOST_POINTS)
    x, y = [line.x[i] for i in at], [line.y[i] for i in at]
    about = {"name": line.name, "legendgroup": line.name}
    if len(x) > 1:
        for kind, band in line.bands.items():
            meta = {"fold": fold, "band": kind}
            figure.add("scatter", **about, **_band(x, at, band), meta=meta, **_band_look(line))
    told = {"customdata": [line.rounds[i] for i in at]} if line.rounds else {}
    value = "%{y:.1%}" if figure.shares else "%{y:.4~g}"
    where = "round %{customdata}, %{x}" if line.rounds else f"{html.escape(figure.x)} %{{x}}"
    figure.add(
        "scatter",
        **about,
        **told,
        x=x,
        y=y,
        meta={"fold": fold},
        mode="lines+markers" if len(x) > 1 else "markers",
        line={"color": line.style.word, "dash": line.style.dash, "width": 2},
        marker={"symbol": line.style.symbol, "size": 6 if len(x) > 1 else 9, **_sparse(x)},
        hovertemplate=f"{where}: {value}",
    )


def _sparse(x: Sequence[float]) -> dict[str, int]:
    """Mark every point of a short line, some of a long one."""
    return {"maxdisplayed": 12} if len(x) > MOST_MARKED else {}


def _band(x: Sequence[float], at: Sequence[int], band: Band) -> dict[str, Any]:
    """Return a band as one line around it: there along its high end, back along its low end."""
    low, high = band
    return {"x": [*x, *reversed(x)], "y": [*(high[i] for i in at), *(low[i] for i in reversed(at))]}


def _band_look(line: Line) -> dict[str, Any]:
    return {
        "fill": "toself",
        "mode": "lines",
        "fillcolor": f"{line.style.word}/0.15",
        "line": {"width": 0},
        "hoverinfo": "skip",
        "showlegend": False,
    }


def chart(figure: Figure) -> str:
    """Return a figure as a part of a page."""
    about = {
        "traces": figure.traces,
        "layout": figure.layout,
        "height": figure.height,
        "above": figure.y,
        "key": figure.key,
        "bands": figure.bands,
        "words": figure.words or figure.y,
    }
    return f'<div class="chart" data-part="chart">{as_data(about)}</div>'


def panels(figures: Sequence[tuple[str, Figure]]) -> str:
    """Return small figures side by side, as many as there is room for, each under its title."""
    each = (f"<div><h3>{html.escape(title)}</h3>{chart(figure)}</div>" for title, figure in figures)
    return f'<div class="panels">{"".join(each)}</div>'


def as_data(value: Any) -> str:
    """Return what the page's script reads: nothing in it can end the element that holds it."""
    text = json.dumps(_finite(value), ensure_ascii=True, separators=(",", ":"), allow_nan=False)
    return '<script type="application/json">' + text.replace("<", "\\u003c") + "</script>"


def _finite(value: Any) -> Any:
    """Return the value as far as it is drawn: six digits, and none of the numbers that JSON does not have."""
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(own) for key, own in value.items()}
    return [_finite(own) for own in value] if isinstance(value, list | tuple) else value
