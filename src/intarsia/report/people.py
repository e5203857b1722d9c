"""What a page shows of clients: the table of them, the mosaic, and how groups changed."""

from __future__ import annotations

import html
from collections.abc import Iterator, Sequence

from intarsia.report.assemblies import assemblies_of, left_out_by
from intarsia.report.client_views import Shown, clients_part
from intarsia.report.clients import ClientScores
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
    "shared by these clients; hatched tiles are nobody else's.</p>"
)

GROUPS = "<p>Who shares a block with whom is a group of it; beside each, how its clients do.</p>"


def people_parts(views: Sequence[RunView]) -> list[Part]:
    """Return the table of clients, the mosaic and the groups of some runs."""
    shown = [Shown(v.label, v.run, v.sections, assemblies_of(v.run, left_out_by(v.sections))) for v in views]
    mosaics = [(o.label, o.run.done, mosaic_of(o.assemblies)) for o in shown if o.assemblies is not None]
    parts = [("Clients", CLIENTS + clients_part(shown))]
    if mosaics:
        parts.append(("Mosaic", MOSAIC + mosaic_part(mosaics)))
    return parts + [part for own in shown for part in _groups(own)]


def _groups(own: Shown) -> Iterator[Part]:
    if own.assemblies is not None:
        content = groups_part(own.assemblies, own.run.groups, ClientScores(own.run))
        if content:
            yield f"Groups: {html.escape(own.label)}", GROUPS + content
