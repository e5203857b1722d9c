"""Clients' networks as graphs over the pool, laid out in the plane for any kind of picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from intarsia.methods.fedmn.links import Layers, Place, block_name, link_ends
from intarsia.report.elements import evenly
from intarsia.report.sections.fedmn.decisions import Decisions

OUTPUT = "output"
MOST_SHOWN = 24
COLUMNS = 4
ACTIVE, IDLE, OUT, LINK = "#0072b2", "#dde3e8", "#444444", "#7fa8c4"
"""Colours of blocks that take part, of those that do not, of the output and of links."""


class Spot(NamedTuple):
    """A block in the plane."""

    x: float
    y: float
    name: str


@dataclass(frozen=True)
class Network:
    """A client's network: every block of the pool, those that take part, and the links between them."""

    spots: Mapping[str, Spot]
    """All blocks and the output: layers from left to right, blocks from top to bottom around 0."""
    active: frozenset[str]
    links: Sequence[tuple[str, str]]
    """The blocks that used links join, by name."""


@dataclass
class Sheet:
    """Small networks side by side, and the part of the plane that they take."""

    width: float
    height: float
    titles: list[Spot] = field(default_factory=list)
    active: list[Spot] = field(default_factory=list)
    idle: list[Spot] = field(default_factory=list)
    outputs: list[Spot] = field(default_factory=list)
    lines: list[tuple[Spot, Spot]] = field(default_factory=list)

    @property
    def window(self) -> tuple[tuple[float, float], tuple[float, float]]:
        """The least and the largest x, and y, with some room around them."""
        top = self.titles[0].y + 0.6
        return (-0.75, self.width - 0.75), (top - self.height - 0.2, top)


def network(layers: Layers, links: Sequence[bool]) -> Network:
    """Return the network that effective links form."""
    places = [(layer, number) for layer, width in enumerate((*layers, 1)) for number in range(width)]
    ends = [pair for pair, on in zip(link_ends(layers), links, strict=True) if on]
    return Network(
        {_name(layers, place): _spot(layers, place) for place in places},
        frozenset(_name(layers, start) for start, _ in ends),
        [(_name(layers, start), _name(layers, end)) for start, end in ends],
    )


def _name(layers: Layers, place: Place) -> str:
    return OUTPUT if place[0] == len(layers) else block_name(layers, place)


def _spot(layers: Layers, place: Place) -> Spot:
    layer, number = place
    return Spot(layer, ((*layers, 1)[layer] - 1) / 2 - number, _name(layers, place))


def network_sheet(decisions: Decisions) -> Sheet:
    """Lay out the own networks after the last round of at most 24 clients, taken evenly from their order."""
    clusters, layers = decisions.clusters, decisions.layers
    shown = evenly(decisions.clients, MOST_SHOWN)
    wide, high = len(layers) + 1.5, max(layers) + 1.4
    sheet = Sheet(wide * min(COLUMNS, len(shown)), high * -(-len(shown) // COLUMNS))
    for at, client in enumerate(shown):
        x, y = wide * (at % COLUMNS), -high * (at // COLUMNS)
        words = f"{client}, {decisions.cohorts[client] or 'no cohort'}, cluster {clusters[client]}"
        sheet.titles.append(Spot(x + len(layers) / 2, y + (max(layers) - 1) / 2 + 0.8, words))
        _place(sheet, network(layers, decisions.final[client]), x, y)
    return sheet


def _place(sheet: Sheet, net: Network, x: float, y: float) -> None:
    """Put a network onto the sheet."""
    spots = {name: Spot(spot.x + x, spot.y + y, name) for name, spot in net.spots.items()}
    for name, spot in spots.items():
        kind = sheet.outputs if name == OUTPUT else sheet.active if name in net.active else sheet.idle
        kind.append(spot)
    sheet.lines += [(spots[start], spots[end]) for start, end in net.links]
