"""Charts of pages, as data: the page's script draws them, in the colours of its theme."""

from __future__ import annotations

import html
import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

SERIES = 8
"""How many colours there are."""
HEIGHT = 380
Points = Iterable[tuple[float, float]]


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
    traces: list[dict[str, Any]] = field(default_factory=list)
    layout: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.layout = {"xaxis": {"title": self.x}, "yaxis": {}, **self.layout}
        if self.shares:
            self.layout["yaxis"]["tickformat"] = ".0%"

    def add(self, kind: str, **trace: Any) -> None:
        """Draw something more: `scatter`, `bar`, `box`, `heatmap`."""
        self.traces.append({"type": kind, **trace})

    def axis(self, name: str, **own: Any) -> None:
        """Say more of an axis, `xaxis` or `yaxis`."""
        self.layout[name] |= own


def colour(number: int) -> str:
    """Return a colour of the theme."""
    return f"--series-{number % SERIES + 1}"


def lines_figure(y: str, lines: Iterable[tuple[str, Points]], x: str = "round", **about: Any) -> Figure:
    """Draw named lines of points, a colour each; y are shares unless told otherwise."""
    figure = Figure(x, y, **{"shares": True, "words": f"{y} by {x}", **about})
    if x == "round":
        figure.axis("xaxis", tickformat="d", rangemode="nonnegative")
    for number, (name, points) in enumerate(lines):
        own = list(points)
        place = {"x": [x for x, _ in own], "y": [y for _, y in own]}
        mode = "lines" if len(own) > 1 else "markers"
        figure.add("scatter", name=name, mode=mode, line={"color": colour(number)}, **place)
    return figure


def chart(figure: Figure) -> str:
    """Return a figure as a part of a page."""
    about = {
        "traces": figure.traces,
        "layout": figure.layout,
        "height": figure.height,
        "above": figure.y,
        "key": figure.key,
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
    """Return the value without numbers that JSON does not have: nothing is drawn there."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(own) for key, own in value.items()}
    return [_finite(own) for own in value] if isinstance(value, list | tuple) else value
