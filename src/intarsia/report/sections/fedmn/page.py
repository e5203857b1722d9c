"""The part of a page about networks that clients assembled from a pool of modules (FedMN)."""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from intarsia.core.text import size
from intarsia.report.elements import COLOURS, as_html, evenly, html_table, new_figure
from intarsia.report.sections.base import Part
from intarsia.report.sections.fedmn.decisions import (
    MOMENTS,
    Decisions,
    Match,
    Payload,
    Sent,
    contingency,
    matches,
)
from intarsia.report.sections.fedmn.networks import (
    ACTIVE,
    IDLE,
    LINK,
    MOST_SHOWN,
    OUT,
    Sheet,
    Spot,
    network_sheet,
)

USE = (
    "<p>In which share of the rounds so far a client's own network had each block. Clients are ordered by "
    "true cohort, then by cluster of equal decisions.</p>"
)
LOSSES = (
    "<p>The clients' loss while they train the networks drawn in a round, weighted by samples (eq. 6); and "
    "how many clients had no complete path, so that the likeliest was switched on.</p>"
)
TRAVELLED = (
    "<p>Blocks that travelled for training, all clients and rounds: copies and their tensor bytes. What a "
    "client holds already is not sent again.</p>"
)


def parts(label: str, decisions: Decisions) -> list[Part]:
    """Return what a page shows of one run: networks, use of blocks, clusters, global loss, payload."""
    found = matches(decisions)
    run = html.escape(label)
    return [
        (f"Assembled networks: {run}", _network_words(decisions) + as_html(_networks(decisions))),
        (f"Use of blocks: {run}", USE + as_html(_use(decisions))),
        (f"Clusters and cohorts: {run}", _cluster_table(found) + as_html(_clusters(decisions, found))),
        (f"Global loss and fallbacks: {run}", LOSSES + as_html(_losses(decisions))),
        (f"What travelled: {run}", TRAVELLED + payload_table(decisions.payload)),
    ]


def _network_words(decisions: Decisions) -> str:
    left_out = len(decisions.clients) - MOST_SHOWN
    more = f" {MOST_SHOWN} clients are shown, taken evenly; {left_out} are left out." if left_out > 0 else ""
    return (
        "<p>Each client's own network after the last round: encoders on the left, then the layers of the pool, "
        f"the output (square) on the right. Blocks that take part are filled.{more}</p>"
    )


def _networks(decisions: Decisions) -> go.Figure:
    sheet = network_sheet(decisions)
    unit = max(8.0, min(26.0, 200 / max(decisions.layers)))
    figure = new_figure("", "")
    figure.add_scatter(**_strokes(sheet), mode="lines", line={"color": LINK, "width": 1.5}, hoverinfo="skip")
    for spots, colour in ((sheet.idle, IDLE), (sheet.active, ACTIVE), (sheet.outputs, OUT)):
        marker = {"color": colour, "size": 0.5 * unit, "symbol": "square" if colour == OUT else "circle"}
        figure.add_scatter(**_dots(spots), mode="markers", marker=marker, hoverinfo="text")
    figure.add_scatter(**_dots(sheet.titles), mode="text", textfont={"size": 10}, hoverinfo="skip")
    figure.update_layout(height=unit * sheet.height + 40, showlegend=False)
    figure.update_layout(margin={"l": 5, "r": 5, "t": 30, "b": 10})
    x, y = sheet.window
    figure.update_xaxes(visible=False, range=x)
    figure.update_yaxes(visible=False, range=y)
    return figure


def _strokes(sheet: Sheet) -> dict[str, list[float | None]]:
    """Return lines as one trace: a gap after each."""
    return {
        "x": [x for start, end in sheet.lines for x in (start.x, end.x, None)],
        "y": [y for start, end in sheet.lines for y in (start.y, end.y, None)],
    }


def _dots(spots: Iterable[Spot]) -> dict[str, list[float] | list[str]]:
    own = list(spots)
    return {"x": [s.x for s in own], "y": [s.y for s in own], "text": [s.name for s in own]}


def _use(decisions: Decisions) -> go.Figure:
    moments, clients = evenly(decisions.rounds, MOMENTS), decisions.clients
    titles = [f"to round {moment}" for moment in moments]
    figure = make_subplots(
        1, len(moments), shared_yaxes=True, subplot_titles=titles, horizontal_spacing=0.015
    )
    rows = [f"{client} ({decisions.cohorts[client] or '-'})" for client in clients]
    for column, moment in enumerate(moments, 1):
        figure.add_heatmap(
            x=decisions.blocks,
            y=rows,
            z=decisions.use(moment),
            coloraxis="coloraxis",
            hovertemplate="%{y}, %{x}: %{z:.0%}<extra></extra>",
            row=1,
            col=column,
        )
    figure.update_layout(_style(14 * len(clients) + 170))
    figure.update_layout(
        coloraxis={"cmin": 0, "cmax": 1, "colorscale": "Blues", "colorbar": {"tickformat": ".0%"}}
    )
    figure.update_yaxes(autorange="reversed", tickfont={"size": 10})
    figure.update_xaxes(tickangle=-90, tickfont={"size": 10})
    return figure


def _cluster_table(found: Iterable[Match]) -> str:
    rows = [
        (f"Groups by {m.title}", str(len(set(m.groups.values()))), "-" if m.rand is None else f"{m.rand:.3f}")
        for m in found
    ]
    words = (
        "<p>Clients with equal effective links (links between blocks that take part) form an implicit cluster. "
        "Beside it, as many groups as there are true cohorts, found among the same links; fewer where there are "
        "fewer different decisions.</p>"
    )
    return words + html_table(("", "Groups", "Adjusted Rand index"), rows)


def _clusters(decisions: Decisions, found: list[Match]) -> go.Figure:
    """Draw how many clients of each true cohort are in each group."""
    figure = make_subplots(1, len(found), shared_yaxes=True, subplot_titles=[m.title for m in found])
    cohorts = sorted({decisions.cohorts[client] for client in decisions.final})
    for column, match in enumerate(found, 1):
        counts = contingency(decisions.cohorts, match.groups)
        figure.add_heatmap(
            x=[str(group) for group in sorted(set(match.groups.values()))],
            y=[cohort or "-" for cohort in cohorts],
            z=counts,
            text=[[n or "" for n in row] for row in counts],
            texttemplate="%{text}",
            hovertemplate="%{y}, group %{x}: %{z} clients<extra></extra>",
            coloraxis="coloraxis",
            row=1,
            col=column,
        )
    figure.update_layout(_style(max(280, 28 * len(cohorts) + 170)))
    figure.update_layout(coloraxis={"cmin": 0, "colorscale": "Blues", "showscale": False})
    figure.update_yaxes(autorange="reversed", type="category")
    figure.update_xaxes(title="group", type="category")
    return figure


def _losses(decisions: Decisions) -> go.Figure:
    figure = make_subplots(1, 2, subplot_titles=["global loss", "clients with a fallback"])
    lines: dict[str, tuple[int, Mapping[int, float]]] = {
        "global loss": (1, decisions.losses),
        "fallbacks in training": (2, decisions.fallbacks("train")),
        "fallbacks of own networks": (2, decisions.fallbacks("own")),
    }
    for (name, (column, line)), colour in zip(lines.items(), COLOURS, strict=False):
        points = {"x": list(line), "y": list(line.values())}
        figure.add_scatter(**points, name=name, mode="lines", line={"color": colour}, row=1, col=column)
    figure.update_layout(_style(370), legend={"orientation": "h", "y": -0.25})
    figure.update_xaxes(title="round")
    figure.update_yaxes(rangemode="tozero")
    return figure


def _style(height: float) -> dict[str, object]:
    return {
        "template": "plotly_white",
        "height": height,
        "margin": {"l": 60, "r": 20, "t": 70, "b": 60},
        "font": {"family": "system-ui, sans-serif", "size": 13},
    }


def payload_table(payload: Payload) -> str:
    """Return the table of what travelled: by kind of block, and sums with and without encoders and router."""
    kept = {
        "all": payload.keys(),
        "without router": payload.keys() - {"router"},
        "without encoders and router": payload.keys() - {"encoders", "router"},
    }
    sums = {
        name: {way: _sum(payload[k][way] for k in kinds) for way in ("down", "up")}
        for name, kinds in kept.items()
    }
    rows = [(name, *_cells(ways["down"]), *_cells(ways["up"])) for name, ways in (payload | sums).items()]
    return html_table(("Blocks", "Copies down", "Bytes down", "Copies up", "Bytes up"), rows)


def _sum(parts: Iterable[Sent]) -> Sent:
    own = list(parts)
    return Sent(sum(p.copies for p in own), sum(p.bytes for p in own))


def _cells(sent: Sent) -> tuple[str, str]:
    return f"{sent.copies:,}", size(sent.bytes)
