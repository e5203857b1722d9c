"""Who shares what with whom: every client's model as its blocks, and the group of each, round by round."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from intarsia.blocks import ME
from intarsia.core import IntarsiaError
from intarsia.data import EVERYONE
from intarsia.experiment import Run
from intarsia.experiment.run_record import RunRecord
from intarsia.report.sections import Section

LEFT_OUT = ""
"""In place of a group: the client's model has the block, but leaves it out."""
Groups = Mapping[str, Mapping[str, str]]
"""By client and block, in the order of the client's model: the group that the block is shared with."""
LeftOut = Mapping[int, Mapping[str, Collection[str]]]
"""By round and client: blocks that its own model leaves out."""


@dataclass(frozen=True)
class Moment:
    """Who shares what after a round (0: before the first)."""

    round: int
    groups: Groups

    @cached_property
    def holders(self) -> Counter[tuple[str, str]]:
        """How many clients share each block and group; what is at home or left out is nobody's."""
        return Counter(
            (block, group)
            for own in self.groups.values()
            for block, group in own.items()
            if group not in (ME, LEFT_OUT)
        )

    @cached_property
    def having(self) -> Counter[str]:
        """How many clients' models have each block."""
        return Counter(block for own in self.groups.values() for block in own)

    def with_everyone(self, block: str, group: str) -> bool:
        """Return whether all clients whose models have the block share it, and there are several."""
        return self.having[block] == self.holders[block, group] > 1


@dataclass(frozen=True)
class Assemblies:
    """The clients' models of a run as blocks: their sizes, and who shared them when."""

    moments: Sequence[Moment]
    """After which rounds it was otherwise than before; the first is how the run began."""
    bytes: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """What each block of a client's model takes, by client and block, where that is known."""

    @property
    def clients(self) -> list[str]:
        """All clients."""
        return list(self.moments[0].groups)

    @property
    def last(self) -> Moment:
        """Who shares what now."""
        return self.moments[-1]

    @cached_property
    def blocks(self) -> list[str]:
        """All blocks of all models, in the order in which models have them."""
        order: list[str] = []
        for blocks in dict.fromkeys(tuple(own) for own in self.moments[0].groups.values()):
            place = 0
            for block in blocks:
                if block not in order:
                    order.insert(place, block)
                place = order.index(block) + 1
        return order


def left_out_by(sections: Iterable[Section]) -> LeftOut:
    """Return what clients' own models leave out, as the sections of a run tell it."""
    return {round: own for section in sections for round, own in section.unused().items()}


def assemblies_of(run: RunRecord, left_out: LeftOut | None = None) -> Assemblies | None:
    """Return who shared what in a run, one that goes on too; None where nothing of it is known.

    Its models are built again from its folder; where that cannot be done (they were given in Python, its clients are
    at sites of their own), its traffic tells what travelled.
    """
    moves = run.groups
    try:
        setup = (run if isinstance(run, Run) else Run(run._folder)).setup
        told = _told_of(run) or setup.addresses.named
        moves = [move for move in moves if move["client"] in told]
        named = {
            client: {block: address.group for block, address in setup.addresses.named[client].items()}
            for client in told
        }
        sizes = {client: setup.template(client).initial for client in named}
        counted = {c: {name: block.nbytes for name, block in own.items()} for c, own in sizes.items()}
    except (IntarsiaError, OSError):
        named, counted = _of_traffic(run, moves)
    return Assemblies(_moments(named, moves, left_out or {}), counted) if named else None


def _told_of(run: RunRecord) -> Collection[str]:
    """Return the clients that are shown where there are too many for all of them (empty: all)."""
    about = run.population
    return list(about["clients"]) if EVERYONE in about else ()


def _moments(named: Groups, moves: Iterable[Mapping[str, Any]], left_out: LeftOut) -> list[Moment]:
    """Play the moves; a moment that is as the one before it is none."""
    of_round: dict[int, list[Mapping[str, Any]]] = defaultdict(list)
    for move in moves:
        of_round[move["round"]].append(move)
    now = {client: dict(own) for client, own in named.items()}
    moments = [Moment(0, named)]
    idle: Mapping[str, Collection[str]] = {}
    for round in sorted({*of_round, *left_out}):
        for move in of_round.get(round, ()):
            now.setdefault(move["client"], {})[move["block"]] = move["group"]
        idle = left_out.get(round, idle)
        groups = {client: _without(own, idle.get(client, ())) for client, own in now.items()}
        if groups != moments[-1].groups:
            moments.append(Moment(round, groups))
    return moments


def _without(own: Mapping[str, str], idle: Collection[str]) -> dict[str, str]:
    return {block: LEFT_OUT if block in idle else group for block, group in own.items()}


def _of_traffic(
    run: RunRecord, moves: Sequence[Mapping[str, Any]]
) -> tuple[dict[str, dict[str, str]], dict[str, dict[str, int]]]:
    """Return what can be seen from outside: the group of every block that travelled, and its size.

    What the models began as tells which blocks are theirs; of those, what never travelled is at home.
    """
    models = _models(run)
    traffic = [row for row in run.traffic if row["block"]]
    theirs = [b for own in models for b in own] or list(dict.fromkeys(row["block"] for row in traffic))
    at_home = set(theirs) - {row["block"] for row in traffic}
    at_home = {block for block in at_home if all(block in own for own in models)}
    everyone = run.population.get("clients", {}) or {row["client"]: None for row in run.traffic}
    seen: dict[str, dict[str, str]] = {client: dict.fromkeys(at_home, ME) for client in everyone}
    sizes: dict[str, dict[str, int]] = {client: {} for client in everyone}
    for row in traffic:
        if row["block"] in theirs and row["client"] in seen:
            seen[row["client"]].setdefault(row["block"], row["group"])
            sizes[row["client"]].setdefault(row["block"], row["bytes"])
    for move in reversed(moves):
        if move["client"] in seen and "before" in move:
            seen[move["client"]][move["block"]] = move["before"]
    return {c: {b: own[b] for b in dict.fromkeys(theirs) if b in own} for c, own in seen.items()}, sizes


def _models(run: RunRecord) -> list[list[str]]:
    """Return the blocks of every kind of model that the run began with; none where no checkpoint tells."""
    try:
        return [list(own) for own in run._folder.state_at().initial.values()]
    except (IntarsiaError, OSError):
        return []
