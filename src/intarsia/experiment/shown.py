"""A run as it shows itself: in a console, and in a notebook."""

from __future__ import annotations

import html
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from intarsia.core import IntarsiaError
from intarsia.core.text import duration, percent, size

if TYPE_CHECKING:
    from intarsia.experiment.opened import Run


def run_in_words(run: Run) -> str:
    """Return a run in a line: where it is, what it was, how far it is and what came of it."""
    facts = _facts(run)
    return f"<Run {run.path}: {', '.join(facts.values())}>" if facts else f"<Run {run.path}: no result yet>"


def run_as_html(run: Run) -> str:
    """Return a run as a small table."""
    facts = {"run folder": str(run.path), **(_facts(run) or {"result": "none yet"})}
    rows = (f"<tr><th>{name}</th><td>{html.escape(value)}</td></tr>" for name, value in facts.items())
    return f"<table>{''.join(rows)}</table>"


def _facts(run: Run) -> dict[str, str]:
    """Return what there is to say; nothing of a run that has no summary, or a damaged one."""
    try:
        summary: Mapping[str, Any] = run.summary
        rounds = run.settings.rounds
    except IntarsiaError:
        return {}
    accuracy, loss = summary["accuracy"], summary["loss"]
    facts = {
        "method": str(summary["method"]),
        "rounds": f"{summary['rounds']} of {rounds} rounds",
        "clients": f"{summary['clients']} clients",
        "accuracy": f"mean accuracy {percent(accuracy['mean'])}" if accuracy else "",
        "worst": f"worst client {percent(accuracy['worst'])}" if accuracy else "",
        "loss": f"mean loss {loss['mean']:.3f}" if loss and not accuracy else "",
        "sent": f"sent {size(sum(summary['bytes'].values()))}",
        "time": duration(summary["seconds"]["total"]),
    }
    return {name: value for name, value in facts.items() if value}
