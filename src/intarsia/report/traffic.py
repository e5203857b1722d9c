"""What travelled: by block and direction."""

from __future__ import annotations

import html
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from intarsia.core.text import size
from intarsia.report.figures import Figure, chart, panels
from intarsia.report.sections.base import Part
from intarsia.report.series import Series

WAYS = {"down": "to clients", "up": "to the server"}
MOST_BLOCKS = 12
"""How many blocks have a bar of their own; the smallest of more are one."""
MOST_PANELS = 8
"""How many runs are drawn; others are in the table of results."""
WORDS = (
    "<p>Bytes of tensors that travelled for training, all clients and rounds{more}. What a client holds already is not "
    "sent again.</p>"
)
Sent = dict[str, dict[str, float]]
"""Bytes by block and direction."""


def traffic_parts(series: Sequence[Series]) -> list[Part]:
    """Return what a page shows of traffic; nothing where nothing travelled."""
    found = [(own, sent) for own in series if (sent := sent_by_block(own))]
    if not found:
        return []
    more = ", the mean over seeds" if any(len(own.views) > 1 for own, _ in found) else ""
    left = "" if len(found) <= MOST_PANELS else f"<p>The first {MOST_PANELS} of {len(found)} are drawn.</p>"
    drawn = [(_title(own, sent), _bars(sent, own.label)) for own, sent in found[:MOST_PANELS]]
    body = f"<h3>{html.escape(drawn[0][0])}</h3>{chart(drawn[0][1])}" if len(drawn) == 1 else panels(drawn)
    return [("Traffic by block", WORDS.format(more=more) + left + body)]


def sent_by_block(own: Series) -> Sent:
    """Return the training bytes of an experiment, the mean over seeds, the largest block first."""
    rows = (row for view in own.views for row in view.run.traffic if row["purpose"] == "train")
    sent = _counted(rows)
    order = sorted(sent, key=lambda block: -sum(sent[block].values()))
    return {block: {way: sent[block][way] / len(own.views) for way in WAYS} for block in order}


def _counted(rows: Iterable[Mapping[str, Any]]) -> dict[str, Counter[str]]:
    sent: dict[str, Counter[str]] = {}
    for row in rows:
        if row["bytes"]:
            sent.setdefault(row["block"] or "values", Counter())[row["direction"]] += row["bytes"]
    return sent


def _title(own: Series, sent: Sent) -> str:
    return f"{own.label}: {size(sum(sum(ways.values()) for ways in sent.values()))}"


def _folded(sent: Sent) -> Sent:
    """Return blocks with a bar each; of many, the smallest as one."""
    if len(sent) <= MOST_BLOCKS:
        return sent
    blocks = list(sent)
    kept, rest = blocks[: MOST_BLOCKS - 1], blocks[MOST_BLOCKS - 1 :]
    others = {way: sum(sent[block][way] for block in rest) for way in WAYS}
    return {**{block: sent[block] for block in kept}, f"{len(rest)} others": others}


def _bars(sent: Sent, label: str) -> Figure:
    shown = _folded(sent)
    figure = Figure("sent", height=26 * len(shown) + 110, words=f"bytes by block and direction, {label}")
    figure.layout |= {"barmode": "stack", "bargap": 0.35}
    for number, (way, name) in enumerate(WAYS.items(), 1):
        figure.add(
            "bar",
            y=list(shown),
            x=[ways[way] for ways in shown.values()],
            orientation="h",
            name=name,
            marker={"color": f"--ways-{number}"},
            hovertemplate="%{y}: %{x:.3s}B",
        )
    figure.axis("xaxis", tickformat="~s", ticksuffix="B", rangemode="tozero", nticks=5)
    figure.axis("yaxis", autorange="reversed", type="category")
    return figure
