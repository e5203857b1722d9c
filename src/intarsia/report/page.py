"""One HTML page about one or several runs; it needs nothing from the network."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from typing import Any

from intarsia.core.text import percent, size
from intarsia.report.elements import html_page, html_section, html_table, table_of
from intarsia.report.figures import Figure, chart, colour, lines_figure
from intarsia.report.pictures import label_counts
from intarsia.report.run_view import RunView
from intarsia.report.verdict import verdict_section

SENT = "megabytes sent (training, up and down)"


def page(title: str, lead: str, views: Sequence[RunView]) -> str:
    """Return the page: a table, accuracy by round, the spread over clients, bytes against accuracy."""
    curves = [(v.label, zip(v.rounds, v.accuracy, strict=True)) for v in views]
    costs = [(v.label, zip(v.megabytes, v.accuracy, strict=True)) for v in views]
    sections = [
        ("Result", _table(views)),
        (
            "Accuracy by round",
            "<p>Mean over clients, each client's own model on its own test data.</p>"
            + chart(lines_figure("mean accuracy", curves)),
        ),
        (
            "Spread over clients",
            "<p>Every dot is a client after the last round: a good mean can hide clients that lose.</p>"
            + chart(_spread(views)),
        ),
        (
            "Accuracy against bytes",
            "<p>Training traffic of all clients, both ways; up and to the left is better.</p>"
            + chart(lines_figure("mean accuracy", costs, SENT)),
        ),
    ]
    if judged := verdict_section(views):
        sections.insert(1, ("Is it any good?", judged))
    if any(v.tasks for v in views):
        sections.insert(1, ("By task", _task_table(views)))
    sections += [part for v in views for section in v.sections for part in section.parts(v.label)]
    shown = next((v.population for v in views if v.population), {})
    if shown and all(v.population == shown for v in views):
        words = "<p>Samples of each client by label, all splits.</p>"
        sections.append(("Who holds what", words + chart(_holdings(shown))))
    body = "".join(html_section(name, content) for name, content in sections)
    return html_page(title, title, html.escape(lead), body)


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
    return table_of(head, "".join(rows))


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


def _spread(views: Sequence[RunView]) -> Figure:
    figure = Figure("", "accuracy of a client", shares=True, key=False)
    for number, view in enumerate(views):
        figure.add(
            "box",
            y=list(view.clients.values()),
            text=list(view.clients),
            name=view.label,
            boxpoints="all",
            jitter=0.6,
            pointpos=0,
            marker={"color": colour(number), "size": 5, "opacity": 0.6},
            line={"color": colour(number)},
            fillcolor="rgba(0,0,0,0)",
        )
    return figure


def _holdings(about: Mapping[str, Any]) -> Figure:
    figure = Figure("client", "samples", key=len(about["labels"]) <= 20, layout={"barmode": "stack"})
    names = list(about["clients"])
    for number, label in enumerate(about["labels"]):
        counts = [label_counts(about["clients"][name])[number] for name in names]
        figure.add("bar", x=names, y=counts, name=label, marker={"color": colour(number)})
    return figure
