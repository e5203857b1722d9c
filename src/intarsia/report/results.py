"""The table of results: a row an experiment, with the deviation over its seeds."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from statistics import fmean, stdev
from typing import Any

from intarsia.core.text import mean_and_std, percent, size
from intarsia.report.elements import chip, html_table, table_of
from intarsia.report.run_view import RunView
from intarsia.report.series import Series

FIGURES = {"mean": "Mean", "weighted": "Weighted", "p10": "10th percentile", "worst": "Worst client"}


def result_table(series: Sequence[Series]) -> str:
    """Return the table: accuracy (or the loss), bytes and time of every experiment; the best is marked."""
    clocked = any(view.virtual for own in series for view in own.views)
    heads = ("Method", *FIGURES.values(), "Sent (training)", *(["Virtual hours"] * clocked), "Seconds")
    best = max((own for one in series if (own := _accuracy(one)) is not None), default=None)
    rows = "".join(_row(own, best is not None and _accuracy(own) == best, clocked) for own in series)
    return table_of("".join(f"<th scope='col'>{head}</th>" for head in heads), rows)


def _accuracy(own: Series) -> float | None:
    means = [view.summary["accuracy"]["mean"] for view in own.views if view.summary["accuracy"]]
    return fmean(means) if means else None


def _row(own: Series, best: bool, clocked: bool) -> str:
    measure = "accuracy" if _accuracy(own) is not None else "loss"
    cells = [_over_seeds(own, measure, key) for key in FIGURES]
    seconds = fmean(view.summary["seconds"]["total"] for view in own.views)
    cells += [size(fmean(view.sent for view in own.views)), *([_hours(own)] * clocked), f"{seconds:.1f}"]
    note = html.escape("; ".join(filter(None, (own.views[0].note, _seeds(own), *_unfinished(own.views)))))
    name = chip(own.style.word) + html.escape(own.label)
    first = f"<th scope='row'>{name}{f' <small>{note}</small>' if note else ''}</th>"
    mark = ' class="best"' if best else ""
    return f"<tr{mark}>{first}{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"


def _hours(own: Series) -> str:
    """Return how long an experiment takes on its fleet."""
    spent = [view.summary["virtual_seconds"] for view in own.views if view.virtual]
    return f"{fmean(spent) / 3600:.3g}" if spent else "-"


def _over_seeds(own: Series, measure: str, key: str) -> str:
    values = [v for view in own.views if (v := view.summary[measure].get(key)) is not None]
    if not values:
        return "-"
    deviation = stdev(values) if len(values) > 1 else None
    return f"{'loss ' if measure == 'loss' else ''}{mean_and_std(fmean(values), deviation, measure)}"


def _seeds(own: Series) -> str:
    return f"{len(own.views)} seeds" if len(own.views) > 1 else ""


def _unfinished(views: Sequence[RunView]) -> list[str]:
    """Say how far runs have come that have not ended."""
    found = [f"{v.summary['rounds']} of {v.run.settings.rounds} rounds" for v in views if not v.finished]
    return [f"not ended: {', '.join(dict.fromkeys(found))}"] if found else []


def task_table(views: Sequence[RunView]) -> str:
    """Return clients, accuracy and loss of each task."""
    rows = [
        (v.label, task, str(own["clients"]), percent(own["accuracy"].get("mean")), _loss(own))
        for v in views
        for task, own in v.tasks.items()
    ]
    return html_table(("Method", "Task", "Clients", "Mean accuracy", "Mean loss"), rows)


def _loss(scores: Mapping[str, Any]) -> str:
    loss = scores["loss"].get("mean")
    return "-" if loss is None else f"{loss:.4f}"
