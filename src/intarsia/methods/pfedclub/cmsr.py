"""CMSR: the search for models that could stand in for a client's (Wang et al. 2024, Algorithm 1)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from intarsia.core import SettingsError, part
from intarsia.methods.pfedclub.assembly import (
    Assembly,
    Constraint,
    Cost,
    assemble,
    cost_of,
    own_model,
    stitch_to,
)
from intarsia.methods.pfedclub.cka import Similarity
from intarsia.methods.pfedclub.decompose import Chain, Chains, FunctionalBlock, Ref, block_of
from intarsia.methods.pfedclub.groups import Groups
from intarsia.models.spec import Shape

PATIENCE = 2000
"""Blocks that are tried behind one anchor before the next anchor is."""


@part
class Search:
    """How candidates are searched; the defaults are the paper's method, the rest its ablations."""

    anchor: Literal["random", "max", "min"] = "random"
    """The first block's stand-in: any of its group, the most similar other one, or one of the smallest index."""
    noc: bool = False
    """No order constraint: any block of the group may follow."""
    nbc: bool = False
    """No block completion: a chain that runs dry ends there."""
    fc_to_conv: bool = False
    """Whether a block that works on maps may follow one that gives a vector."""
    most: Annotated[int, Field(ge=1)] = 8
    """How many candidates are kept."""


def candidates(
    model: str,
    chains: Chains,
    groups: Groups,
    similarity: Similarity,
    search: Search,
    draw: np.random.Generator,
    constraints: Sequence[Constraint] = (),
) -> list[Assembly]:
    """Return different assemblies that could stand in for a model; its own blocks if there are none.

    1. An anchor from the group of the model's first block. Where nothing allowed begins with it, another is drawn.
    2. Depth first, in an order that is drawn: the r-th block's stand-in is of its group, with an index above
       that of the block before.
    3. A chain that runs dry at block r is completed with the model's own blocks from r on.
    """
    if model not in chains:
        raise SettingsError(f"there is no model '{model}' among: {', '.join(chains)}")
    way = _Way(chains[model], model, chains, _members(groups), groups, search, draw, constraints)
    for anchor in _anchors(way, similarity):
        found = list(islice(_different(_complete(way, anchor)), search.most))
        if found:
            return found
    return [own_model(model, chains)]


@dataclass(frozen=True)
class _Way:
    """What a search needs to know."""

    chain: Chain
    model: str
    chains: Chains
    members: dict[int, list[Ref]]
    groups: Groups
    search: Search
    draw: np.random.Generator
    constraints: Sequence[Constraint]

    def group(self, place: int) -> list[Ref]:
        """Return the blocks that do alike work as the model's block at this place."""
        return self.members[self.groups[Ref(self.model, place)]]

    def shuffled(self, options: Sequence[Ref]) -> list[Ref]:
        return [options[i] for i in self.draw.permutation(len(options))]

    def own(self, start: int) -> list[Ref]:
        return [Ref(self.model, block.index) for block in self.chain[start:]]

    def allows(self, cost: Cost) -> bool:
        return all(constraint(cost) for constraint in self.constraints)


def _members(groups: Groups) -> dict[int, list[Ref]]:
    members: dict[int, list[Ref]] = {}
    for ref, group in groups.items():
        members.setdefault(group, []).append(ref)
    return members


def _anchors(way: _Way, similarity: Similarity) -> list[Ref]:
    """Return the first block's possible stand-ins, in the order in which they are tried."""
    options, first = way.shuffled(way.group(0)), Ref(way.model, 0)
    if way.search.anchor == "min":
        return sorted(options, key=lambda ref: ref.index)
    if way.search.anchor == "max":
        return sorted(options, key=lambda ref: (ref == first, -similarity.between(first, ref)))
    return options


def _different(assemblies: Iterable[Assembly]) -> Iterator[Assembly]:
    seen: set[tuple[Ref, ...]] = set()
    for made in assemblies:
        if made.blocks not in seen:
            seen.add(made.blocks)
            yield made


def _complete(way: _Way, anchor: Ref) -> Iterator[Assembly]:
    """Yield every allowed assembly that begins with this anchor, as long as patience lasts."""
    first = block_of(way.chains, anchor)
    start, outputs = way.chain[0].takes, way.chain[-1].gives[0]
    cost = _behind(Cost(), first, start)
    if not way.allows(cost):
        return
    for blocks, filled in _chains(way, [anchor], cost, iter(range(PATIENCE))):
        made = assemble(blocks, way.chains, start, outputs, filled)
        if way.allows(made.cost):
            yield made


def _chains(
    way: _Way, blocks: list[Ref], cost: Cost, patience: Iterator[int]
) -> Iterator[tuple[list[Ref], int]]:
    """Yield chains that go on from these blocks, each with how many of its blocks were found."""
    place = len(blocks)
    if place == len(way.chain):
        yield blocks, place
        return
    last = block_of(way.chains, blocks[-1])
    options = _options(way, place, last)
    for option in way.shuffled(options):
        if next(patience, None) is None:
            return
        block = block_of(way.chains, option)
        onward = _behind(cost, block, last.gives)
        if way.allows(onward):
            yield from _chains(way, [*blocks, option], onward, patience)
    if not options:
        yield from _dry(way, blocks, last)


def _options(way: _Way, place: int, last: FunctionalBlock) -> list[Ref]:
    """Return the blocks that may stand at this place behind the last one."""
    return [
        ref
        for ref in way.group(place)
        if (way.search.noc or ref.index > last.index) and _may_follow(way, last, block_of(way.chains, ref))
    ]


def _dry(way: _Way, blocks: list[Ref], last: FunctionalBlock) -> Iterator[tuple[list[Ref], int]]:
    """Yield the chain that no block may follow, completed from its unfilled block on."""
    place = len(blocks)
    if way.search.nbc:
        yield blocks, place
    elif _may_follow(way, last, way.chain[place]):
        yield [*blocks, *way.own(place)], place


def _may_follow(way: _Way, last: FunctionalBlock, block: FunctionalBlock) -> bool:
    return way.search.fc_to_conv or not (len(last.gives) == 1 and block.kind == "conv")


def _behind(cost: Cost, block: FunctionalBlock, shape: Shape) -> Cost:
    return cost + cost_of(stitch_to(block, shape)) + cost_of(block)
