"""The part of a page about clients: the table, and what is shown of a client that is opened."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from intarsia.core.text import size
from intarsia.report.assemblies import Assemblies
from intarsia.report.clients import (
    ClientScores,
    Column,
    alone_in,
    attributes_of,
    columns_of,
    confusions_of,
    failures_of,
    history_of,
    labels_of,
)
from intarsia.report.figures import as_data
from intarsia.report.mosaic import EVERYONE, Palette
from intarsia.report.reading import Reading
from intarsia.report.sections import Section

HISTORY, CONFUSION, LINKS = 24_000, 12_000, 8_000
"""How many figures of clients' courses, counts of what they said, and links between their blocks a page carries."""


@dataclass(frozen=True)
class Shown:
    """A run whose clients are shown, with all that was read of it."""

    label: str
    run: Reading
    sections: Sequence[Section]
    assemblies: Assemblies | None


def clients_part(shown: Sequence[Shown], first: str = "") -> str:
    """Return the table of the clients of runs, one of them first, each of which can be opened, as a part of a page."""
    scores = [ClientScores(own.run) for own in shown]
    data = [
        {**_data(one, own, alone_in(own, scores), len(shown)), "first": one.label == first}
        for one, own in zip(shown, scores, strict=True)
    ]
    return f'<div class="clients" data-part="clients" id="clients-part">{as_data(data)}</div>'


def _data(one: Shown, scores: ClientScores, alone: Mapping[str, Any], runs: int) -> dict[str, Any]:
    columns = columns_of(scores, alone)
    history = history_of(scores, HISTORY // runs)
    lost = set(history.errors)
    return {
        "label": one.label,
        "names": scores.clients,
        "columns": [_column(column) for column in columns],
        "about": attributes_of(scores),
        "labels": labels_of(scores),
        "confusion": confusions_of(scores, CONFUSION // runs),
        "failures": failures_of(scores, 300 // runs),
        "judged": bool(scores.judged),
        "beside": any(column.key.startswith("gain-") for column in columns),
        "rounds": history.rounds,
        "errors": history.errors,
        "history": [
            [_short(value) if place in lost else _thousandths(value) for value in own]
            for place, own in enumerate(history.values)
        ],
        "teachers": _teachers(one.sections, scores.clients),
        **(_models(one.assemblies, one.sections, scores.clients, LINKS // runs) if one.assemblies else {}),
    }


def _column(column: Column) -> dict[str, Any]:
    return {
        "key": column.key,
        "title": column.title,
        "form": column.form,
        "more": column.more,
        "shown": column.in_table,
        "values": [_short(value) for value in column.values],
    }


def _short(value: float | int | None) -> float | int | None:
    """Return a number as a page needs it: four digits."""
    return float(f"{value:.4g}") if isinstance(value, float) else value


def _thousandths(value: float | None) -> int | None:
    return None if value is None else round(1000 * value)


Held = tuple[str, str, int, str]
"""What a client holds: a block, its group where others share it, the colour of that, and its size in words."""


def _models(
    assemblies: Assemblies, sections: Iterable[Section], clients: Sequence[str], room: int
) -> dict[str, Any]:
    """Return clients' models: what clients hold, once each; and which of it, in which order, whose model has."""
    links = {client: own for section in sections for client, own in section.links().items()}
    palette = Palette.of(assemblies)
    held: dict[Held, int] = {}
    ways: dict[tuple[tuple[int, ...], tuple[int, ...]], int] = {}
    of_client = []
    for client in clients:
        own = list(_held(client, assemblies, palette))
        joined = tuple(_joined([block for block, *_ in own], links.get(client, ())))
        way = (tuple(held.setdefault(one, len(held)) for one in own), joined)
        if way not in ways:
            room -= len(joined)
            way = way if room >= 0 else (way[0], ())
        of_client.append(ways.setdefault(way, len(ways)))
    return {"groups": palette.groups, "held": list(held), "ways": list(ways), "way": of_client}


def _held(client: str, assemblies: Assemblies, palette: Palette) -> Iterator[Held]:
    last, sizes = assemblies.last, assemblies.bytes.get(client, {})
    for block, group in last.groups.get(client, {}).items():
        colour = palette.colour(last, block, group)
        yield block, group if colour >= EVERYONE else "", colour, size(sizes[block]) if block in sizes else ""


def _joined(blocks: Sequence[str], links: Iterable[tuple[str, str]]) -> Iterator[int]:
    """Return which block leads to which, by their places; -1 is the output."""
    places = {block: place for place, block in enumerate(blocks)}
    for start, end in links:
        if start in places:
            yield from (places[start], places.get(end, -1))


def _teachers(sections: Iterable[Section], clients: Sequence[str]) -> dict[int, list[list[Any]]]:
    """Return by place whose blocks a client's last teacher was made of: the owner's place, and which of its blocks."""
    places = {client: place for place, client in enumerate(clients)}
    return {
        places[client]: [[places.get(donor, donor), block] for donor, block in own]
        for section in sections
        for client, own in section.teachers().items()
        if client in places
    }
