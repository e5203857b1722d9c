"""What pages are made of: tables and figures in one style."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from importlib import resources
from typing import Any, TypeVar

import plotly.graph_objects as go

T = TypeVar("T")
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#8c6d31")


def html_table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table whose first column names the rows."""
    head = "".join(f"<th scope='col'>{h}</th>" for h in heads)
    body = "".join(
        f"<tr><th scope='row'>{html.escape(first)}</th>"
        + "".join(f"<td>{html.escape(cell)}</td>" for cell in rest)
        + "</tr>"
        for first, *rest in rows
    )
    return f"<div class='wide'><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"


def html_page(title: str, heading: str, lead: str, body: str, script: str = "") -> str:
    """Return a page in our style; the lead and the body are HTML already."""
    style = (resources.files("intarsia.report") / "page.css").read_text()
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{html.escape(title)}</title><style>{style}</style>"
        + (f"<script>{script}</script>" if script else "")
        + f"</head><body><main><h1>{html.escape(heading)}</h1><p class='lead'>{lead}</p>{body}</main></body></html>\n"
    )


def new_figure(x: str, y: str) -> go.Figure:
    """Return an empty figure in the style of the pages; y is a share unless told otherwise."""
    figure = go.Figure()
    figure.update_layout(
        template="plotly_white",
        height=420,
        margin={"l": 60, "r": 20, "t": 20, "b": 50},
        xaxis_title=x,
        yaxis_title=y,
        yaxis_tickformat=".0%",
        legend={"orientation": "h", "y": 1.12},
        font={"family": "system-ui, sans-serif", "size": 14},
    )
    return figure


Points = Iterable[tuple[float, float]]


def lines_figure(y: str, lines: Iterable[tuple[str, Points]], x: str = "round", **style: Any) -> go.Figure:
    """Draw named lines of points, a colour each."""
    figure = new_figure(x, y)
    for number, (name, points) in enumerate(lines):
        own = list(points)
        place = {"x": [x for x, _ in own], "y": [y for _, y in own]}
        look = {"mode": "lines+markers", "line": {"color": COLOURS[number % len(COLOURS)]}, **style}
        figure.add_scatter(name=name, **place, **look)
    return figure


def as_html(figure: go.Figure) -> str:
    """Return a figure as a part of a page that has the script."""
    config = {"displaylogo": False, "responsive": True}
    return str(figure.to_html(full_html=False, include_plotlyjs=False, config=config))


def evenly(items: Sequence[T], number: int) -> list[T]:
    """Return as many items, evenly spread from the first to the last; all where there are no more."""
    if len(items) <= number:
        return list(items)
    return [items[i * (len(items) - 1) // (number - 1)] for i in range(number)]
