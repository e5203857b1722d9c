"""CMSR: the search for models that could stand in for a client's (Wang et al. 2024, Algorithm 1)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from intarsia.core import part
from intarsia.methods.pfedclub.assembly import (
    Assembly,
    Constraint,
    Seams,
    assemble,
    follows,
    own_blocks,
    own_model,
)
from intarsia.methods.pfedclub.cka import FunctionalGroups, Similarity
from intarsia.methods.pfedclub.decompose import Chains, Cost, FunctionalBlock, Ref, block_of, total

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
    outputs_last: bool = False
    """Whether blocks that give their model's scores stand last and nowhere else, as pFedHR has it."""
    most: Annotated[int, Field(ge=1)] = 8
    """How many candidates are kept."""


@dataclass
class CMSR:
    """The search for one model's candidates among the blocks of all.

    1. An anchor from the group of the model's first block. Where nothing allowed begins with it, another is drawn.
    2. Depth first, in an order that is drawn: the r-th block's stand-in is of its group, with an index above
       that of the block before.
    3. A chain that runs dry at block r is completed with the model's own blocks from r on.
    """

    model: str
    chains: Chains
    groups: FunctionalGroups
    similarity: Similarity
    search: Search
    draw: np.random.Generator
    constraints: Sequence[Constraint] = ()
    seams: Seams = field(default_factory=Seams)
    own: tuple[Ref, ...] = field(init=False)
    patience: Iterator[int] = field(init=False)

    def __post_init__(self) -> None:
        self.own = own_blocks(self.model, self.chains)

    def candidates(self) -> list[Assembly]:
        """Return different assemblies that could stand in for the model; its own blocks if there are none."""
        for anchor in self._anchors():
            found: dict[tuple[Ref, ...], Assembly] = {}
            for made in self._beginning_with(anchor):
                found.setdefault(made.blocks, made)
                if len(found) == self.search.most:
                    break
            if found:
                return list(found.values())
        return [own_model(self.model, self.chains)]

    def _anchors(self) -> list[Ref]:
        """Return the first block's possible stand-ins, in the order in which they are tried."""
        options, first = self._shuffled(self._group(0)), self.own[0]
        if self.search.anchor == "min":
            return sorted(options, key=lambda ref: ref.index)
        if self.search.anchor == "max":
            blocks, values = self.similarity
            alike = dict(zip(blocks, values[blocks.index(first)], strict=True))
            return sorted(options, key=lambda ref: (ref == first, -alike[ref]))
        return options

    def _beginning_with(self, anchor: Ref) -> Iterator[Assembly]:
        """Yield every allowed assembly that begins with this anchor, as long as patience lasts."""
        chain = self.chains[self.model]
        self.patience = iter(range(PATIENCE))
        cost = self.seams.cost(self._block(anchor), chain[0].takes, follows(None, anchor))
        for blocks, filled in self._longer((anchor,), cost) if self._allows(cost) else ():
            shape, outputs = chain[0].takes, chain[-1].gives[0]
            made = assemble(blocks, self.chains, shape, outputs, filled, self.seams)
            if self._allows(made.cost):
                yield made

    def _longer(self, blocks: tuple[Ref, ...], cost: Cost) -> Iterator[tuple[tuple[Ref, ...], int]]:
        """Yield chains that go on from these blocks, each with how many of its blocks were found."""
        place, last = len(blocks), self._block(blocks[-1])
        if place == len(self.own):
            yield blocks, place
            return
        later = [ref for ref in self._group(place) if self.search.noc or ref.index > last.index]
        options = [ref for ref in later if self._fits_behind(last, ref)]
        for option in self._shuffled(options):
            if next(self.patience, None) is None:
                return
            behind = follows(blocks[-1], option)
            onward = total([cost, self.seams.cost(self._block(option), last.gives, behind)])
            if self._allows(onward):
                yield from self._longer((*blocks, option), onward)
        if not options and self.search.nbc:
            yield blocks, place
        elif not options and self._fits_behind(last, self.own[place]):
            yield (*blocks, *self.own[place:]), place

    def _fits_behind(self, last: FunctionalBlock, ref: Ref) -> bool:
        return self.search.fc_to_conv or len(last.gives) == 3 or self._block(ref).kind == "fc"

    def _block(self, ref: Ref) -> FunctionalBlock:
        return block_of(self.chains, ref)

    def _group(self, place: int) -> list[Ref]:
        """Return the blocks that do alike work as the model's block at this place, and may stand there."""
        alike = [ref for ref, group in self.groups.items() if group == self.groups[self.own[place]]]
        if not self.search.outputs_last:
            return alike
        last = place == len(self.own) - 1
        return [ref for ref in alike if last == (ref.index == len(self.chains[ref.model]) - 1)]

    def _shuffled(self, options: list[Ref]) -> list[Ref]:
        return [options[i] for i in self.draw.permutation(len(options))]

    def _allows(self, cost: Cost) -> bool:
        return all(constraint(cost) for constraint in self.constraints)
