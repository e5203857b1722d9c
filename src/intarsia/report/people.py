"""What a page shows of clients: the table of them, the mosaic, and how groups changed."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence

from intarsia.report.assemblies import assemblies_of, left_out_by
from intarsia.report.client_views import Shown, clients_part
from intarsia.report.clients import ClientScores
from intarsia.report.elements import folded
from intarsia.report.groups import groups_part
from intarsia.report.mosaic import mosaic_of, mosaic_part
from intarsia.report.run_view import RunView
from intarsia.report.sections.base import Part

CLIENTS = (
    "<p>The worst client first: its own model on its own test data, beside what a model would reach that knows the "
    "usual answer alone. Open a client to see what its model said, what it is made of and how it came about.</p>"
)
MOSAIC = (
    "<p>Who shares what: a column a client, a row a block. Tiles of one colour in a row are one and the same block, "
    "shared by these clients; hatched tiles are nobody else's, and dotted frames are blocks that a model leaves "
    "out.</p>"
)

GROUPS = "<p>Who shares a block with whom is a group of it; beside each, how its clients do.</p>"


def people_parts(views: Sequence[RunView]) -> list[Part]:
    """Return the table of clients, the mosaic and the groups of some runs; the best run is shown first."""
    shown = [Shown(v.label, v.run, v.sections, assemblies_of(v.run, left_out_by(v.sections))) for v in views]
    best = best_of(views)
    mosaics = [(o.label, o.run.done, mosaic_of(o.assemblies)) for o in shown if o.assemblies is not None]
    parts = [("Clients", CLIENTS + _sampled(views) + clients_part(shown, best))]
    if mosaics:
        parts.append(("Mosaic", MOSAIC + mosaic_part(mosaics, best)))
    return [*parts, *_groups(shown, best)]


def _sampled(views: Sequence[RunView]) -> str:
    """Say which runs evaluate some of their clients alone."""
    few = [view for view in views if view.run.settings.evaluation.clients]
    told = "; ".join(
        f"{view.summary['evaluated']:,} of {view.summary['clients']:,} clients of {html.escape(view.label)}"
        for view in few
    )
    return f"<p>Evaluated, always the same: {told}.</p>" if few else ""


def best_of(views: Sequence[RunView]) -> str:
    """Return the label of the run with the highest mean accuracy, or with the lowest loss where there is none."""

    def merit(view: RunView) -> tuple[bool, float]:
        accuracy, loss = (view.summary[name].get("mean") for name in ("accuracy", "loss"))
        return accuracy is not None, accuracy if accuracy is not None else -(
            math.inf if loss is None else loss
        )

    return max(views, key=merit).label if views else ""


def _groups(shown: Sequence[Shown], best: str) -> list[Part]:
    """Return the groups of runs; of several, those of the best are opened."""
    contents = {
        own.label: groups_part(own.assemblies, own.run.groups, ClientScores(own.run))
        for own in shown
        if own.assemblies is not None
    }
    found = {label: content for label, content in contents.items() if content}
    if not found:
        return []
    if len(shown) == 1:
        return [("Groups", GROUPS + "".join(found.values()))]
    opened = best if best in found else next(iter(found))
    each = (folded(html.escape(label), own, label == opened) for label, own in found.items())
    return [("Groups", GROUPS + "".join(each))]
