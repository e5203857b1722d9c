"""The part of a page about networks that clients assembled from a pool of modules (FedMN)."""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping

from intarsia.core.text import size
from intarsia.report.elements import at_least_wide, evenly, html_table
from intarsia.report.figures import Figure, chart, lines_figure, panels
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
from intarsia.report.sections.fedmn.networks import MOST_SHOWN, Sheet, Spot, network_sheet

USE = (
    "<p>In which share of the rounds so far a client's own network had each block. Clients are ordered by "
    "true cohort, then by cluster of equal decisions. The stronger the colour, the more rounds; blank is none.</p>"
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
        (
            f"Assembled networks: {run}",
            _network_words(decisions) + at_least_wide(chart(_networks(decisions))),
        ),
        (f"Use of blocks: {run}", USE + panels(_use(decisions))),
        (f"Clusters and cohorts: {run}", _cluster_table(found) + panels(_clusters(decisions, found))),
        (f"Global loss and fallbacks: {run}", LOSSES + panels(_losses(decisions))),
        (f"What travelled: {run}", TRAVELLED + payload_table(decisions.payload)),
    ]


def _network_words(decisions: Decisions) -> str:
    left_out = len(decisions.clients) - MOST_SHOWN
    more = f" {MOST_SHOWN} clients are shown, taken evenly; {left_out} are left out." if left_out > 0 else ""
    return (
        "<p>Each client's own network after the last round: encoders on the left, then the layers of the pool, "
        f"the output (square) on the right. Blocks that take part are filled.{more}</p>"
    )


def _networks(decisions: Decisions) -> Figure:
    sheet = network_sheet(decisions)
    unit = max(8.0, min(26.0, 200 / max(decisions.layers)))
    figure = Figure(height=unit * sheet.height + 40, key=False, words="the network of every client")
    figure.add(
        "scatter",
        **_strokes(sheet),
        mode="lines",
        line={"color": "--series-1/0.6", "width": 1.5},
        hoverinfo="skip",
    )
    looks = (
        (sheet.idle, "--rule", "circle"),
        (sheet.active, "--series-1", "circle"),
        (sheet.outputs, "--ink", "square"),
    )
    for spots, colour, symbol in looks:
        marker = {"color": colour, "size": 0.5 * unit, "symbol": symbol}
        figure.add("scatter", **_dots(spots), mode="markers", marker=marker, hoverinfo="text")
    figure.add("scatter", **_dots(sheet.titles), mode="text", textfont={"size": 10}, hoverinfo="skip")
    x, y = sheet.window
    figure.axis("xaxis", visible=False, range=x)
    figure.axis("yaxis", visible=False, range=y)
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


def _use(decisions: Decisions) -> list[tuple[str, Figure]]:
    rows = [f"{client} ({decisions.cohorts[client] or '-'})" for client in decisions.clients]
    high = max(3.0, min(14.0, 700 / len(rows)))
    found = []
    for moment in evenly(decisions.rounds, MOMENTS):
        figure = Figure(height=high * len(rows) + 120, key=False, words=f"use of blocks to round {moment}")
        figure.add(
            "heatmap",
            x=decisions.blocks,
            y=rows,
            z=decisions.use(moment),
            zmin=0,
            zmax=1,
            xgap=1,
            ygap=1 if high > 5 else 0,
            colorscale="--heat",
            showscale=False,
            hovertemplate="%{y}, %{x}: %{z:.0%}<extra></extra>",
        )
        figure.axis("yaxis", type="category", autorange="reversed", tickfont={"size": 10})
        figure.axis("xaxis", type="category", tickangle=-90, tickfont={"size": 10})
        found.append((f"to round {moment}", figure))
    return found


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


def _clusters(decisions: Decisions, found: list[Match]) -> list[tuple[str, Figure]]:
    """Draw how many clients of each true cohort are in each group."""
    cohorts = sorted({decisions.cohorts[client] for client in decisions.final})
    drawn = []
    for match in found:
        counts = contingency(decisions.cohorts, match.groups)
        figure = Figure("group", height=max(240, 28 * len(cohorts) + 120), key=False, words=match.title)
        figure.add(
            "heatmap",
            x=[str(group) for group in sorted(set(match.groups.values()))],
            y=[cohort or "-" for cohort in cohorts],
            z=counts,
            zmin=0,
            text=[[n or "" for n in row] for row in counts],
            texttemplate="%{text}",
            hovertemplate="%{y}, group %{x}: %{z} clients<extra></extra>",
            colorscale="--heat",
            showscale=False,
        )
        figure.axis("yaxis", autorange="reversed", type="category")
        figure.axis("xaxis", type="category")
        drawn.append((match.title, figure))
    return drawn


def _losses(decisions: Decisions) -> list[tuple[str, Figure]]:
    loss = {"global loss": decisions.losses}
    fallbacks = {
        "fallbacks in training": decisions.fallbacks("train"),
        "fallbacks of own networks": decisions.fallbacks("own"),
    }
    counted = _by_round(fallbacks)
    if max((n for own in fallbacks.values() for n in own.values()), default=0) <= 5:
        counted.axis("yaxis", dtick=1, minallowed=0, autorangeoptions={"include": [0, 1]})
    return [("Global loss", _by_round(loss)), ("Clients with a fallback", counted)]


def _by_round(lines: Mapping[str, Mapping[int, float]]) -> Figure:
    figure = lines_figure(
        "", ((name, line.items()) for name, line in lines.items()), shares=False, height=280
    )
    figure.axis("yaxis", rangemode="tozero")
    return figure


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
