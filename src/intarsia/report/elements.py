"""What pages are made of: tables and figures in one style."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence

import plotly.graph_objects as go

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


def as_html(figure: go.Figure) -> str:
    """Return a figure as a part of a page that has the script."""
    config = {"displaylogo": False, "responsive": True}
    return str(figure.to_html(full_html=False, include_plotlyjs=False, config=config))
