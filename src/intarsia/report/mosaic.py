"""The mosaic of a run: clients beside clients, block upon block, a colour for every group that shares one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import Any

from intarsia.blocks import ALL, ME
from intarsia.core.text import size
from intarsia.report.assemblies import LEFT_OUT, Assemblies, Moment
from intarsia.report.elements import evenly
from intarsia.report.figures import as_data

NONE, OWN, ALONE, OUT, EVERYONE = range(5)
"""Colours that are no group's: the model has no such block; it stays at home; it is kept for one client alone; the
client leaves it out; all share it. Groups come after them."""
WORDS = ("no such block", "stays with the client", "one client alone", "left out", "all who use it")
MOST_ROWS = 24
"""From how many blocks on neighbours that are shared alike become one row."""
MOST_MOMENTS, MOST_PATCHES = 40, 16_000
"""How many rounds a slider has at most, and how many patches a page carries for it."""
Tiles = list[list[int]]
"""The colour of every tile: a row a block, a column a client."""


@dataclass(frozen=True)
class Row:
    """A block, or several neighbours that are shared alike."""

    blocks: tuple[str, ...]
    bytes: int
    """What it takes in the largest model."""

    @property
    def name(self) -> str:
        """The block, or the first and the last."""
        return self.blocks[0] if len(self.blocks) == 1 else f"{self.blocks[0]} to {self.blocks[-1]}"


@dataclass(frozen=True)
class Mosaic:
    """Who shares what: tiles, in an order of the clients in which those stand together who share."""

    clients: list[str]
    rows: list[Row]
    groups: list[str]
    """The names of the groups, by colour."""
    moments: list[tuple[int, Tiles]]
    """The tiles after those rounds in which some changed."""

    @property
    def tiles(self) -> Tiles:
        """The tiles as they are now."""
        return self.moments[-1][1]

    @property
    def key(self) -> list[int]:
        """The colours that are used."""
        return sorted({colour for _, tiles in self.moments for row in tiles for colour in row})

    def name(self, colour: int) -> str:
        """Return what a colour stands for."""
        return self.groups[colour - len(WORDS)] if colour >= len(WORDS) else WORDS[colour]


@dataclass(frozen=True)
class Palette:
    """Which colour stands for whom: one for every group that several clients were in."""

    groups: list[str]
    """The names of the groups; their colours come after those that are no group's."""

    @classmethod
    def of(cls, assemblies: Assemblies) -> Palette:
        """Give colours to groups, block by block; what everyone shares needs none."""
        found: dict[str, None] = {}
        for block in assemblies.blocks:
            names = {
                group
                for moment in assemblies.moments
                for (of, group), count in moment.holders.items()
                if of == block and count > 1 and not _is_everyones(moment, block, group)
            }
            found |= dict.fromkeys(sorted(names))
        return cls(list(found))

    @cached_property
    def _numbers(self) -> dict[str, int]:
        return {group: len(WORDS) + number for number, group in enumerate(self.groups)}

    def colour(self, moment: Moment, block: str, group: str | None) -> int:
        """Return the colour of a client's block that is in a group (None: it has no such block)."""
        if group is None:
            return NONE
        if group in (ME, LEFT_OUT):
            return OWN if group == ME else OUT
        if moment.holders[block, group] == 1:
            return ALONE
        return EVERYONE if _is_everyones(moment, block, group) else self._numbers[group]

    def tiles(self, moment: Moment, assemblies: Assemblies) -> Tiles:
        """Return the tiles of a moment, clients in the order of the assemblies."""
        own = [moment.groups[client] for client in assemblies.clients]
        return [
            [self.colour(moment, block, groups.get(block)) for groups in own] for block in assemblies.blocks
        ]


def mosaic_of(assemblies: Assemblies) -> Mosaic:
    """Lay out who shares what."""
    palette = Palette.of(assemblies)
    moments = evenly(assemblies.moments, MOST_MOMENTS)
    each = [palette.tiles(moment, assemblies) for moment in moments]
    order = in_patches(range(len(assemblies.clients)), each[-1])
    laid = [[[row[place] for place in order] for row in tiles] for tiles in each]
    rows = _rows(assemblies, laid)
    kept = [assemblies.blocks.index(row.blocks[0]) for row in rows]
    return Mosaic(
        [assemblies.clients[place] for place in order],
        rows,
        palette.groups,
        [(m.round, [tiles[at] for at in kept]) for m, tiles in zip(moments, laid, strict=True)],
    )


def _is_everyones(moment: Moment, block: str, group: str) -> bool:
    return group == ALL or moment.with_everyone(block, group)


def in_patches(places: Sequence[int], tiles: Tiles) -> list[int]:
    """Order columns so that equal tiles lie together: by the row with the fewest colours first, to and fro."""
    telling = sorted((row for row in tiles if len(set(row)) > 1), key=lambda row: len(set(row)))
    return list(_to_and_fro(list(places), telling))


def _to_and_fro(places: Sequence[int], rows: Sequence[Sequence[int]], back: bool = False) -> Iterator[int]:
    if not rows or len(places) < 2:
        yield from places
        return
    colours = sorted({rows[0][place] for place in places}, reverse=back)
    for number, colour in enumerate(colours):
        own = [place for place in places if rows[0][place] == colour]
        yield from _to_and_fro(own, rows[1:], back=number % 2 == 1)


def _rows(assemblies: Assemblies, each: Sequence[Tiles]) -> list[Row]:
    """Return the rows: a block each; where there are many, neighbours of the same tiles are one."""
    places = range(len(assemblies.blocks))
    alike: Callable[[int], Any] = lambda place: [tiles[place] for tiles in each]  # noqa: E731
    if len(places) <= MOST_ROWS:
        alike = int
    found = [tuple(assemblies.blocks[place] for place in own) for _, own in groupby(places, alike)]
    sizes = [{b: own.get(b, 0) for b in assemblies.blocks} for own in assemblies.bytes.values()]
    return [Row(own, max((sum(size[b] for b in own) for size in sizes), default=0)) for own in found]


def mosaic_part(mosaics: Sequence[tuple[str, int, Mosaic]], first: str = "") -> str:
    """Return the mosaics of runs, each with its label and the rounds that are done, one first, as a part of a page."""
    data = as_data(
        [{**_data(label, done, own, len(mosaics)), "first": label == first} for label, done, own in mosaics]
    )
    return f'<div class="mosaic" data-part="mosaic" id="mosaic-part">{data}</div>'


def _data(label: str, done: int, mosaic: Mosaic, runs: int) -> dict[str, Any]:
    moments = _within(mosaic.moments, MOST_PATCHES // runs)
    return {
        "label": label,
        "done": done,
        "clients": mosaic.clients,
        "rows": [[row.name, size(row.bytes) if row.bytes else ""] for row in mosaic.rows],
        "groups": mosaic.groups,
        "rounds": [round for round, _ in moments],
        "tiles": [[_patches(row) for row in tiles] for _, tiles in moments],
    }


def _within(moments: Sequence[tuple[int, Tiles]], room: int) -> list[tuple[int, Tiles]]:
    """Return as many moments, from the first to the last, as there is room for their patches."""
    patches = sum(len(_patches(row)) // 2 for _, tiles in moments for row in tiles)
    return evenly(moments, max(2, len(moments) * room // max(patches, 1)))


def _patches(row: Sequence[int]) -> list[int]:
    """Return a row as colours, each followed by how many tiles have it."""
    return [number for colour, own in groupby(row) for number in (colour, len(list(own)))]
