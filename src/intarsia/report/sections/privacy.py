"""What a run has cost its clients of their privacy."""

from __future__ import annotations

import html
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from intarsia.experiment.run_record import RunRecord
from intarsia.report.elements import html_table
from intarsia.report.sections.base import Part, Section

COVERED = {
    "client": "It is about all that one client has, in every version of the shared blocks; who sees one address alone "
    "learns no more than its line says. It is not about clients' scores, nor about who took part in which round: these "
    "stay in the run folder, which is the operator's.",
    "example": "It is about one sample of a client's training data, in all that the client sent of its training; this "
    "is the client that has spent most. It is not about scores on validation and test data.",
}


def privacy_line(summary: Mapping[str, Any]) -> str:
    """Return what a run has spent, in a sentence (empty: nobody's privacy was protected)."""
    told = summary.get("privacy")
    if not told:
        return ""
    left = f" of a budget of {told['budget']:.3g}" if told["budget"] else ""
    whose = "a client's privacy" if told["level"] == "client" else "the privacy of a sample"
    how = "; keyed noise: a simulation" if told["randomness"] == "keyed" else ""
    return f"Spent of {whose}: epsilon {told['epsilon']:.3g}{left}, delta {told['delta']:.1e}{how}"


@dataclass(frozen=True)
class SpentPrivacy(Section):
    """Epsilon of the run, and of every address or client."""

    summary: Mapping[str, Any]

    @classmethod
    def read(cls, run: RunRecord) -> Self | None:
        """Return the section of a run under privacy."""
        return cls(run.summary) if run.summary.get("privacy") else None

    def parts(self, label: str) -> list[Part]:
        """Return what was spent, in a sentence and by address or client."""
        told = self.summary["privacy"]
        words = f"<p>{html.escape(privacy_line(self.summary))}. {html.escape(COVERED[told['level']])}</p>"
        return [(f"Privacy: {html.escape(label)}", words + _table(told))]


def _table(told: Mapping[str, Any]) -> str:
    if told["level"] == "client":
        rows = [(a, str(own["releases"]), f"{own['epsilon']:.3g}") for a, own in told["addresses"].items()]
        return html_table(("Address", "Releases", "Epsilon"), rows)
    most = sorted(told["clients"].items(), key=lambda item: -item[1]["epsilon"])
    rows = [(name, str(own["times"]), f"{own['epsilon']:.3g}") for name, own in most]
    return html_table(("Client", "Trained", "Epsilon"), rows)
