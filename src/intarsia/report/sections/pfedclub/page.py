"""The part of a page about teachers that a server made of clients' blocks (pFedClub, pFedHR)."""

from __future__ import annotations

import html
from typing import Any

from intarsia.report.figures import Figure, chart, colour, lap_of, lines_figure
from intarsia.report.sections.base import Part
from intarsia.report.sections.pfedclub.teachers import MOST_TEACHERS, Reassembly

SYMBOLS = ("circle", "square", "diamond", "triangle-up", "triangle-down", "cross", "star", "x")
"""One a functional group."""
HATCHES = ("", "/", "x", ".")
"""One for every time that the colours begin anew."""
PHI = (
    "<p>phi: by what share a client's teachers are larger than its model, the mean over its rounds so far. "
    "At 0 they are as large.</p>"
)
SCORES = (
    "<p>In which share of a client's training samples its teacher is right, mean of the clients of a round. A "
    "teacher below its client has little to teach it.</p>"
)


def parts(label: str, reassembly: Reassembly) -> list[Part]:
    """Return what a page shows of one run: functional groups, teachers, phi, and what teachers know."""
    run = html.escape(label)
    found = [
        (f"Functional groups: {run}", _group_words(reassembly) + chart(_groups(reassembly))),
        (f"Teachers: {run}", _teacher_words(reassembly) + chart(_strips(reassembly))),
        (f"Size of teachers: {run}", PHI + chart(_phi(reassembly))),
    ]
    if reassembly.scored:
        found.append((f"What teachers know: {run}", SCORES + chart(_scores(reassembly))))
    return found


def _group_words(reassembly: Reassembly) -> str:
    return (
        f"<p>The blocks of round {reassembly.groups['round']}: near each other if what goes into them and comes out "
        "of them is alike. A colour is a client, a shape is a functional group.</p>"
    )


def _groups(reassembly: Reassembly) -> Figure:
    figure = Figure(words="blocks, near each other if alike")
    spots = reassembly.spots
    for number, client in enumerate(dict.fromkeys(spot.client for spot in spots)):
        own = [spot for spot in spots if spot.client == client]
        figure.add(
            "scatter",
            x=[s.x for s in own],
            y=[s.y for s in own],
            text=[f"{client}, block {s.place}, group {s.group + 1}" for s in own],
            mode="markers",
            hoverinfo="text",
            name=reassembly.words(client),
            marker={
                "size": 12,
                "color": colour(number),
                "symbol": [SYMBOLS[s.group % len(SYMBOLS)] for s in own],
                "line": {"color": "--ink", "width": 2 * lap_of(number)},
            },
        )
    figure.axis("xaxis", showticklabels=False)
    figure.axis("yaxis", showticklabels=False)
    return figure


def _teacher_words(reassembly: Reassembly) -> str:
    return (
        "<p>The last teacher of each client, from its first block to its last; the colour is the client that a block "
        "is from, a dark edge is where pieces were put together, a diamond is a stitch that was tuned there. At most "
        f"{MOST_TEACHERS} are shown. In "
        f"{100 * reassembly.own:.0f} % of all cases of this run a client's own model was its teacher.</p>"
    )


def _strips(reassembly: Reassembly) -> Figure:
    shown, donors = reassembly.teachers, reassembly.donors
    figure = Figure(
        "blocks, from the first to the last",
        height=max(300, 26 * len(shown) + 120),
        layout={"barmode": "overlay"},
    )
    for number, donor in enumerate(donors):
        own = [
            (at, reassembly.words(t.client), piece)
            for t in shown
            for at, piece in enumerate(t.pieces)
            if piece.donor == donor
        ]
        figure.add(
            "bar",
            x=[0.94] * len(own),
            base=[at + 0.03 for at, _, _ in own],
            y=[client for _, client, _ in own],
            text=[str(piece.place) for _, _, piece in own],
            orientation="h",
            name=reassembly.words(donor),
            marker={"color": colour(number), "pattern": _hatch(number)},
            hovertemplate=f"{html.escape(donor)}, block %{{text}}<extra></extra>",
        )
    seams = [(at, t) for t in shown for at, piece in enumerate(t.pieces) if piece.seam]
    stitches = [(at, t) for t in shown for at in t.stitched]
    for name, sign, marks in (("put together", "|", seams), ("stitched", "◇", stitches)):
        figure.add(
            "scatter",
            x=[float(at) for at, _ in marks],
            y=[reassembly.words(t.client) for _, t in marks],
            text=[sign] * len(marks),
            mode="text",
            name=name,
            hoverinfo="skip",
        )
    figure.axis("yaxis", type="category", autorange="reversed")
    figure.axis("xaxis", showticklabels=False, showgrid=False, zeroline=False)
    return figure


def _hatch(number: int) -> dict[str, Any]:
    """Return how the n-th of several bars is hatched: not at all as long as there are colours."""
    shape = HATCHES[lap_of(number) % len(HATCHES)]
    return {"shape": shape, "fillmode": "overlay", "fgcolor": "--card", "fgopacity": 0.35}


def _phi(reassembly: Reassembly) -> Figure:
    return lines_figure("phi", ((reassembly.words(client), own) for client, own in reassembly.phi.items()))


def _scores(reassembly: Reassembly) -> Figure:
    return lines_figure("right", reassembly.teacher_scores.items())
