"""What must be known before anything else on a page: what looks wrong, who failed, what was refused."""

from __future__ import annotations

import html
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from intarsia.federation import WARNING
from intarsia.report.run_view import RunView
from intarsia.report.sections.base import Part

LOST = {
    "failed": "tasks of clients failed",
    "refused": "updates were refused",
    "died": "workers ended by themselves",
}
MOST_NAMED = 5
"""How many clients a sentence names."""


def notice_parts(views: Sequence[RunView]) -> list[Part]:
    """Return the warnings of runs, each once for all runs that have it; nothing where all is well."""
    found: dict[str, list[str]] = {}
    for view in views:
        for text in dict.fromkeys(notices_of(view)):
            found.setdefault(text, []).append(view.label)
    if not found:
        return []
    alone = len(views) == 1
    items = "".join(
        f"<li>{'' if alone else f'<b>{html.escape(_whose(labels))}</b>: '}{html.escape(text)}</li>"
        for text, labels in found.items()
    )
    return [("Warnings", f'<ul class="warnings">{items}</ul>')]


def notices_of(view: RunView) -> list[str]:
    """Return what must be said of a run, in sentences."""
    events = view.run.events
    lost = [_lost(kind, events) for kind in LOST if any(e["kind"] == kind for e in events)]
    judged = [warned["message"] for warned in view.summary.get("judged", {}).get("warnings", ())]
    return [*lost, *judged, *(e["message"] for e in events if e["kind"] == WARNING)]


def _lost(kind: str, events: Sequence[Mapping[str, Any]]) -> str:
    own = [event for event in events if event["kind"] == kind]
    clients = Counter(event["client"] for event in own if event["client"])
    named = [f"{client} ({count})" for client, count in clients.most_common(MOST_NAMED)]
    more = [f"{len(clients) - MOST_NAMED} more"] if len(clients) > MOST_NAMED else []
    whose = f", of {', '.join([*named, *more])}" if named else ""
    last = own[-1]
    return f"{len(own)} {LOST[kind]}{whose}. The last, in round {last['round']}: {last['message']}"


def _whose(labels: Sequence[str]) -> str:
    named = list(labels[:MOST_NAMED])
    return ", ".join([*named, *([f"{len(labels) - MOST_NAMED} more"] if len(labels) > MOST_NAMED else [])])
