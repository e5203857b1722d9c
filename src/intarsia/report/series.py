"""Experiments of a page: runs that differ in their seed alone are one line, one box, one column."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from intarsia.report.curves import ACCURACY, Curve
from intarsia.report.run_view import RunView
from intarsia.report.styles import Style, styles_of

Kind = tuple[str, str]
"""A task and what it is measured by."""


@dataclass(frozen=True, eq=False)
class Series:
    """The runs of one experiment, and what they look like."""

    label: str
    style: Style
    views: Sequence[RunView]

    @cached_property
    def curves(self) -> dict[Kind, list[tuple[RunView, Curve]]]:
        """The curves of all runs, by task and measure."""
        found: dict[Kind, list[tuple[RunView, Curve]]] = {}
        for view in self.views:
            for curve in view.curves:
                found.setdefault((curve.task, curve.measure), []).append((view, curve))
        return found

    @property
    def title(self) -> str:
        """What it is called, and how many seeds it has."""
        return f"{self.label}, {len(self.views)} seeds" if len(self.views) > 1 else self.label


def series_of(views: Sequence[RunView]) -> list[Series]:
    """Return the experiments among runs, in the order in which they came."""
    found: dict[str, list[RunView]] = {}
    for view in views:
        found.setdefault(view.experiment, []).append(view)
    styles = styles_of(own[0].method for own in found.values())
    return [Series(label, style, own) for (label, own), style in zip(found.items(), styles, strict=True)]


def kinds_of(series: Sequence[Series]) -> list[Kind]:
    """Return all tasks and measures there are, accuracies first."""
    found = dict.fromkeys(kind for own in series for kind in own.curves)
    return sorted(found, key=lambda kind: kind[1] != ACCURACY)


def measures_in_words(series: Sequence[Series]) -> str:
    """Return what the runs are measured by, as a heading begins: `Accuracy`, `Loss`, or both."""
    measures = dict.fromkeys(measure for _, measure in kinds_of(series)) or {ACCURACY: None}
    return " and ".join(measures).capitalize()
