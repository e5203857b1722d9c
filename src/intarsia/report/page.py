"""One HTML page about one or several runs; it needs nothing from the network."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any

import plotly.graph_objects as go
from plotly.offline import get_plotlyjs

from intarsia.report import assembled, taught
from intarsia.report.parts import COLOURS, as_html, html_table, new_figure
from intarsia.report.pictures import label_counts
from intarsia.report.tables import RunView
from intarsia.report.verdict import verdict_section
from intarsia.report.words import percent, size


def page(title: str, lead: str, views: Sequence[RunView]) -> str:
    """Return the page: a table, accuracy by round, the spread over clients, bytes against accuracy."""
    sections = [
        ("Result", _table(views)),
        (
            "Accuracy by round",
            "<p>Mean over clients, each client's own model on its own test data.</p>"
            + as_html(_curves(views)),
        ),
        (
            "Spread over clients",
            "<p>Every dot is a client after the last round: a good mean can hide clients that lose.</p>"
            + as_html(_spread(views)),
        ),
        (
            "Accuracy against bytes",
            "<p>Training traffic of all clients, both ways; up and to the left is better.</p>"
            + as_html(_bytes(views)),
        ),
    ]
    if judged := verdict_section(views):
        sections.insert(1, ("Is it any good?", judged))
    if any(v.tasks for v in views):
        sections.insert(1, ("By task", _task_table(views)))
    for v in views:
        if v.moves:
            words = "<p>The group of every client after each round; white: not in a group that was found.</p>"
            sections.append((f"Groups found: {html.escape(v.label)}", words + as_html(_groups(v))))
        if v.decisions is not None:
            sections += assembled.sections(v.label, v.decisions)
        if v.reassembly is not None:
            sections += taught.sections(v.label, v.reassembly)
    shown = next((v.population for v in views if v.population), {})
    if shown and all(v.population == shown for v in views):
        words = "<p>Samples of each client by label, all splits.</p>"
        sections.append(("Who holds what", words + as_html(_holdings(shown))))
    style = (resources.files("intarsia.report") / "page.css").read_text()
    body = "".join(f"<section><h2>{name}</h2>{content}</section>" for name, content in sections)
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{html.escape(title)}</title><style>{style}</style>"
        f"<script>{get_plotlyjs()}</script></head><body><main>"
        f"<h1>{html.escape(title)}</h1><p class='lead'>{html.escape(lead)}</p>{body}</main></body></html>\n"
    )


def _table(views: Sequence[RunView]) -> str:
    heads = ("Method", "Mean", "Weighted", "10th percentile", "Worst client", "Sent (training)", "Seconds")
    best = max((v.summary["accuracy"].get("mean", 0.0) for v in views), default=0.0)
    rows = []
    for v in views:
        a = v.summary["accuracy"]
        mark = ' class="best"' if a and a["mean"] == best else ""
        note = f" <small>{html.escape(v.note)}</small>" if v.note else ""
        cells = [percent(a.get(key)) for key in ("mean", "weighted", "p10", "worst")]
        cells += [size(v.sent), f"{v.summary['seconds']['total']:.1f}"]
        first = f"<th scope='row'>{html.escape(v.label)}{note}</th>"
        rows.append(f"<tr{mark}>{first}{''.join(f'<td>{c}</td>' for c in cells)}</tr>")
    head = "".join(f"<th scope='col'>{h}</th>" for h in heads)
    return (
        f"<div class='wide'><table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table></div>"
    )


def _task_table(views: Sequence[RunView]) -> str:
    rows = [
        (v.label, task, str(own["clients"]), percent(own["accuracy"].get("mean")), _loss(own))
        for v in views
        for task, own in v.tasks.items()
    ]
    return html_table(("Method", "Task", "Clients", "Mean accuracy", "Mean loss"), rows)


def _loss(scores: Mapping[str, Any]) -> str:
    loss = scores["loss"].get("mean")
    return "-" if loss is None else f"{loss:.4f}"


def _groups(view: RunView) -> go.Figure:
    """Draw each client's group by round: a row a client, a colour a group."""
    clients = sorted(view.clients) or sorted({m["client"] for m in view.moves})
    names = sorted({m["group"] for m in view.moves})
    rounds = list(range(1, view.summary["rounds"] + 1))
    now: dict[str, str] = {}
    columns = []
    for round in rounds:
        now |= {m["client"]: m["group"] for m in view.moves if m["round"] == round}
        columns.append([names.index(now[c]) if c in now else None for c in clients])
    words = [[names[at] if at is not None else "-" for at in column] for column in columns]
    figure = new_figure("round", "")
    figure.add_heatmap(
        x=rounds,
        y=clients,
        z=[list(row) for row in zip(*columns, strict=True)],
        text=[list(row) for row in zip(*words, strict=True)],
        hovertemplate="%{y}, round %{x}: %{text}<extra></extra>",
        colorscale="Turbo",
        showscale=False,
        xgap=1,
        ygap=1,
    )
    figure.update_layout(height=max(320, 16 * len(clients) + 100), yaxis_tickformat="")
    return figure


def _curves(views: Sequence[RunView]) -> go.Figure:
    figure = new_figure("round", "mean accuracy")
    for view, colour in zip(views, _colours(views), strict=True):
        figure.add_scatter(
            x=view.rounds, y=view.accuracy, name=view.label, mode="lines", line={"color": colour}
        )
    return figure


def _spread(views: Sequence[RunView]) -> go.Figure:
    figure = new_figure("", "accuracy of a client")
    for view, colour in zip(views, _colours(views), strict=True):
        figure.add_box(
            y=list(view.clients.values()),
            text=list(view.clients),
            name=view.label,
            boxpoints="all",
            jitter=0.6,
            pointpos=0,
            marker={"color": colour, "size": 5, "opacity": 0.6},
            line={"color": colour},
            fillcolor="rgba(0,0,0,0)",
        )
    figure.update_layout(showlegend=False)
    return figure


def _bytes(views: Sequence[RunView]) -> go.Figure:
    figure = new_figure("megabytes sent (training, up and down)", "mean accuracy")
    for view, colour in zip(views, _colours(views), strict=True):
        figure.add_scatter(
            x=view.megabytes,
            y=view.accuracy,
            name=view.label,
            mode="lines+markers",
            marker={"size": 4},
            line={"color": colour},
        )
    return figure


def _holdings(about: Mapping[str, Any]) -> go.Figure:
    figure = new_figure("client", "samples")
    names = list(about["clients"])
    for number, label in enumerate(about["labels"]):
        counts = [label_counts(about["clients"][name])[number] for name in names]
        figure.add_bar(x=names, y=counts, name=label)
    figure.update_layout(barmode="stack", yaxis_tickformat="", showlegend=len(about["labels"]) <= 20)
    return figure


def _colours(views: Sequence[RunView]) -> list[str]:
    return [COLOURS[i % len(COLOURS)] for i in range(len(views))]
