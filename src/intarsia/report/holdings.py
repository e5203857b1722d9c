"""Who holds what: samples of every client by label."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from typing import Any

from intarsia.data import EVERYONE
from intarsia.data.recorded import clients_in
from intarsia.report.figures import Figure, chart
from intarsia.report.held import MANY_CLIENTS, held_by, label_counts
from intarsia.report.run_view import RunView
from intarsia.report.sections.base import Part
from intarsia.report.styles import label_colour

MOST_NAMED = 20
"""How many labels are named beside the picture."""
Population = Mapping[str, Any]


def holdings_parts(views: Sequence[RunView]) -> list[Part]:
    """Return what a page shows of clients' data: of the first run, where runs have unlike ones."""
    shown = next((view for view in views if view.population), None)
    if shown is None:
        return []
    alike = all(_held(view.population) == _held(shown.population) for view in views)
    whose = "" if alike else f" This is what {html.escape(shown.label)} had; others had other shares."
    figure, order = _figure(shown.population)
    return [
        (
            "Who holds what",
            f"<p>Samples of each client by label, all splits.{order}{whose}{_everyone(shown.population)}</p>"
            + chart(figure),
        )
    ]


def _held(about: Population) -> Any:
    return about.get("labels"), about.get("clients")


def _everyone(about: Population) -> str:
    """Say, where some clients are shown, how many there are and what they have."""
    if EVERYONE not in about:
        return ""
    samples = about[EVERYONE]["samples"]
    quantiles = ", ".join(f"{samples[key]:,.0f}" for key in ("10", "50", "90"))
    return (
        f" Shown are {len(about['clients']):,} of {clients_in(about):,} clients. All of them have "
        f"{samples['0']:,.0f} to {samples['100']:,.0f} samples (10th, 50th and 90th percentile: {quantiles})."
    )


def _figure(about: Population) -> tuple[Figure, str]:
    """Return the picture, and in which order clients are."""
    if len(about["clients"]) < MANY_CLIENTS:
        return _bars(about), ""
    return _heat(
        about
    ), " Clients of a cohort stand together, and in it those with the same most frequent label."


def _bars(about: Population) -> Figure:
    labels = about["labels"]
    figure = Figure("client", "samples", key=len(labels) <= MOST_NAMED, layout={"barmode": "stack"})
    counts = {name: label_counts(client) for name, client in about["clients"].items()}
    for number, label in enumerate(labels):
        figure.add(
            "bar",
            x=list(counts),
            y=[own[number] for own in counts.values()],
            name=label,
            marker={"color": label_colour(number, len(labels))},
        )
    figure.axis("xaxis", type="category")
    return figure


def _heat(about: Population) -> Figure:
    counts, labels = held_by(about), list(map(str, about["labels"]))
    figure = Figure("client", "label", height=max(240, min(640, 22 * len(labels) + 130)), key=False)
    figure.words = f"samples by client and label, {len(counts)} clients, {len(labels)} labels"
    figure.add(
        "heatmap",
        x=list(counts),
        y=labels,
        z=[list(row) for row in zip(*counts.values(), strict=True)],
        zmin=0,
        colorscale="--heat",
        colorbar={"title": {"text": "samples", "side": "right"}, "thickness": 12, "outlinewidth": 0},
        hovertemplate="%{x}, label %{y}: %{z}<extra></extra>",
    )
    figure.axis("xaxis", type="category")
    if len(counts) > MANY_CLIENTS:
        figure.axis("xaxis", showticklabels=False, ticks="")
    figure.axis("yaxis", type="category", autorange="reversed")
    return figure
