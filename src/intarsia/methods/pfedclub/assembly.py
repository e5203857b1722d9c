"""Assemblies: models put together from blocks of several others, with stitches where shapes do not fit."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

from torch import Tensor, nn

from intarsia.core import WireError, chance, part
from intarsia.methods.pfedclub.decompose import Chains, Cost, FunctionalBlock, Ref, block_of, decompose, total
from intarsia.models.spec import Architecture, Shape, Spec


@dataclass(frozen=True)
class Stitch:
    """A stitch as plain data: what it takes and gives, maps (channels, height, width) or vectors.

    map to map: adaptive pooling where sizes differ, a 1x1 convolution, ReLU; both orders of the first two give the
    same, so the convolution stands where the map is smaller. To a vector: maps are averaged to a
    point, then a linear layer and ReLU. Vector to map: a linear layer to the channels, ReLU, the same value
    everywhere. A head has no ReLU. (The paper says ReLU(W'X + b); a dense W between maps would outweigh the model.)
    """

    takes: Shape
    gives: Shape
    head: bool = False

    @property
    def cost(self) -> Cost:
        """What it needs."""
        values = self.gives[0] * min(math.prod(self.takes[1:]), math.prod(self.gives[1:]))
        return Cost((self.takes[0] + 1) * self.gives[0], self.takes[0] * values, values)

    def to_json(self) -> dict[str, Any]:
        """Return the stitch as plain values."""
        return {"takes": list(self.takes), "gives": list(self.gives), "head": self.head}

    def build(self) -> nn.Sequential:
        """Return its layers, with weights drawn from torch's generator."""
        layers = self._between_maps() if len(self.takes) == len(self.gives) == 3 else self._linear()
        if not self.head:
            layers.append(nn.ReLU())
        if len(self.gives) > len(self.takes):
            layers += [nn.Unflatten(1, (-1, 1, 1)), nn.Upsample(self.gives[1:])]
        return nn.Sequential(*layers)

    def _between_maps(self) -> list[nn.Module]:
        conv, size = nn.Conv2d(self.takes[0], self.gives[0], 1), self.gives[1:]
        if self.takes[1:] == size:
            return [conv]
        pool = nn.AdaptiveAvgPool2d(size)
        return [conv, pool] if math.prod(size) > math.prod(self.takes[1:]) else [pool, conv]

    def _linear(self) -> list[nn.Module]:
        linear = nn.Linear(self.takes[0], self.gives[0])
        return [linear] if len(self.takes) == 1 else [nn.AdaptiveAvgPool2d(1), nn.Flatten(), linear]


@part
class Seams:
    """Where stitches stand, and what they give to dense layers.

    By default there is a stitch only where shapes do not fit, and one into a dense layer that flattens maps gives all
    their values from a single point.
    """

    every: bool = False
    """Whether there is one between any two blocks that do not follow each other in their own model."""
    dense: Literal["point", "smaller"] = "point"
    """From a map into a dense layer that flattens maps: a map averaged to a point, and a linear layer to all values; or
    what is smaller, a 1x1 convolution to the map that is flattened, which keeps where things are."""

    def stitch(self, block: FunctionalBlock, shape: Shape, follows: bool = False) -> Stitch | None:
        """Return the stitch from values of this shape to a block; none if they go in as they are.

        `follows` says that they come from the block before it in its own model.
        """
        if shape in (block.takes, block.entry) and (follows or not self.every):
            return None
        as_map = self.dense == "smaller" and len(shape) == len(block.takes) == 3
        return Stitch(shape, block.takes if as_map else block.entry)

    def cost(self, block: FunctionalBlock, shape: Shape, follows: bool = False) -> Cost:
        """Return what a block needs behind values of this shape, with its stitch."""
        stitch = self.stitch(block, shape, follows)
        return total([stitch.cost, block.cost]) if stitch else block.cost


def follows(before: Ref | None, ref: Ref) -> bool:
    """Say whether a block stands behind the one before it (None: the inputs) as in its own model."""
    if before is None:
        return ref.index == 0
    return (before.model, before.index + 1) == (ref.model, ref.index)


Constraint = Callable[[Cost], bool]
"""Says whether a cost is allowed. More never becomes allowed where less was not: searches stop there."""


@dataclass(frozen=True)
class Assembly:
    """A model put together from blocks, as plain data: nothing is copied before it is built."""

    blocks: tuple[Ref, ...]
    stitches: tuple[Stitch | None, ...]
    """One before each block where there is a stitch, and last the head if the last block is none."""
    filled: int
    """How many blocks the search found; the others are the client's own that complete them."""
    cost: Cost

    def is_own(self, model: str, chains: Chains) -> bool:
        """Say whether this is just the model itself."""
        return self.blocks == own_blocks(model, chains)

    @property
    def frozen(self) -> int:
        """How many blocks stand before the first stitch: what they give never changes."""
        return next((i for i, stitch in enumerate(self.stitches) if stitch is not None), len(self.blocks))

    def build(self, chains: Chains, seed: int) -> Assembled:
        """Return the network of the models' own layers, then frozen; stitches are drawn from what they join."""
        words = [f"{ref.model}:{ref.index}" for ref in self.blocks]
        with chance.torch_seeded(seed, "stitches", *words):
            return Assembled((block_of(chains, ref).module for ref in self.blocks), self.stitches)

    def blueprint(self, specs: Mapping[str, Spec]) -> dict[str, Any]:
        """Return what can travel: for each block its architecture, not the name of its owner, and its place there."""
        known = list(dict.fromkeys(specs[ref.model] for ref in self.blocks))
        return {
            "architectures": [spec.to_json() for spec in known],
            "blocks": [[known.index(specs[ref.model]), ref.index] for ref in self.blocks],
            "stitches": [stitch and stitch.to_json() for stitch in self.stitches],
        }


def assemble(
    blocks: Sequence[Ref],
    chains: Chains,
    shape: Shape,
    outputs: int,
    filled: int,
    seams: Seams = Seams(),  # noqa: B008 - it never changes
) -> Assembly:
    """Put blocks in a row for inputs of this shape, with stitches at the seams and a head if need be."""
    costs, stitches = [], []
    for before, ref in pairwise((None, *blocks)):
        assert ref is not None
        block, behind = block_of(chains, ref), follows(before, ref)
        stitches.append(seams.stitch(block, shape, behind))
        costs.append(seams.cost(block, shape, behind))
        shape = block.gives
    head = head_behind(shape, outputs)
    cost = total([*costs, head.cost if head else Cost()])
    return Assembly(tuple(blocks), (*stitches, head), filled, cost)


def head_behind(shape: Shape, outputs: int) -> Stitch | None:
    """Return the stitch from values of this shape to scores; none if they are scores."""
    return None if shape == (outputs,) else Stitch(shape, (outputs,), head=True)


def own_blocks(model: str, chains: Chains) -> tuple[Ref, ...]:
    """Return a model's own blocks in order."""
    return tuple(Ref(model, block.index) for block in chains[model])


def own_model(model: str, chains: Chains) -> Assembly:
    """Return a model as the assembly of its own blocks: it needs no stitches."""
    chain = chains[model]
    return assemble(own_blocks(model, chains), chains, chain[0].takes, chain[-1].gives[0], 0)


class Assembled(nn.Module):
    """Frozen blocks in evaluation mode, and stitches between them that can be trained."""

    def __init__(self, blocks: Iterable[nn.Module], stitches: Sequence[Stitch | None]) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(blocks).requires_grad_(False)
        self.stitches = nn.ModuleDict({str(i): s.build() for i, s in enumerate(stitches) if s is not None})

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits."""
        for layer in self.layers():
            x = layer(x)
        return x

    def layers(self, start: int = 0) -> list[nn.Module]:
        """Return what stands from this block on: blocks whole, the stitches before them layer by layer."""
        found: list[nn.Module] = []
        for place in range(start, len(self.blocks) + 1):
            if str(place) in self.stitches:
                found += self.stitches[str(place)].children()
            found += self.blocks[place : place + 1]
        return found


def rebuild(
    blueprint: Mapping[str, Any], tensors: Mapping[str, Tensor], known: Mapping[str, type[Architecture]]
) -> tuple[Assembled, list[Spec]]:
    """Return the network of a blueprint, and its architectures, of which only registered ones can be built.

    Its stitches are some that its blocks allow. Two models of one architecture share a place in it, so every block is
    a copy.
    """
    try:
        specs = [Spec.from_json(spec, known) for spec in blueprint["architectures"]]
        chains = {str(i): decompose(spec.build(0), spec.shape) for i, spec in enumerate(specs)}
        blocks = [Ref(str(which), index) for which, index in blueprint["blocks"]]
        known_as = {str(i): spec for i, spec in enumerate(specs)}
        stitches = _stitches(blueprint["stitches"], blocks, chains, specs[0])
        if Assembly(tuple(blocks), stitches, 0, Cost()).blueprint(known_as) != blueprint:
            raise ValueError("its stitches do not follow from its blocks")
        model = Assembled([copy.deepcopy(block_of(chains, ref).module) for ref in blocks], stitches)
        model.load_state_dict(dict(tensors), strict=True)
    except (TypeError, KeyError, ValueError, IndexError, RuntimeError) as error:
        raise WireError(f"this teacher cannot be built: {error}") from error
    return model.eval(), specs


def _stitches(told: Any, blocks: Sequence[Ref], chains: Chains, spec: Spec) -> tuple[Stitch | None, ...]:
    """Return the stitches that a blueprint tells of; an error if its blocks allow none like them."""
    shape, found = spec.shape, []
    own_of = dict(enumerate(told))
    for place, ref in enumerate(blocks):
        block = block_of(chains, ref)
        allowed = [
            Seams(every, dense).stitch(block, shape)
            for every in (False, True)
            for dense in ("point", "smaller")
        ]
        fitting = [stitch for stitch in allowed if (stitch and stitch.to_json()) == own_of.get(place)]
        if not fitting:
            raise ValueError("its stitches do not follow from its blocks")
        found.append(fitting[0])
        shape = block.gives
    return (*found, head_behind(shape, spec.outputs))
