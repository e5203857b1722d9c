"""Assemblies: models put together from blocks of several others, as plain data and as networks."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from intarsia.core import SettingsError, WireError, chance
from intarsia.methods.pfedclub.decompose import Chain, Chains, FunctionalBlock, Ref, block_of, decompose
from intarsia.methods.pfedclub.stitches import Stitch
from intarsia.models.spec import Architecture, Shape, Spec


@dataclass(frozen=True)
class Cost:
    """What a model, or a part of one, needs."""

    parameters: int = 0
    macs: int = 0
    """Multiplications with addition for one sample."""
    activations: int = 0
    """Values that convolutions and linear layers give for one sample: training keeps them in memory."""

    def __add__(self, other: Cost) -> Cost:
        return Cost(
            self.parameters + other.parameters,
            self.macs + other.macs,
            self.activations + other.activations,
        )


Constraint = Callable[[Cost], bool]
"""Says whether a cost is allowed. More never becomes allowed where less was not: searches stop there."""


def cost_of(piece: FunctionalBlock | Stitch | None) -> Cost:
    """Return what a block or a stitch needs; no stitch needs nothing."""
    return Cost() if piece is None else Cost(piece.parameters, piece.macs, piece.activations)


def chain_cost(chain: Chain) -> Cost:
    """Return what a whole model needs."""
    return sum(map(cost_of, chain), Cost())


def size_limit(chain: Chain, eta: float = 0.1) -> Constraint:
    """Allow at most (1 + eta) times this model's parameters: |w*| <= (1 + eta) |w| (section 4.4)."""
    most = _most(eta, chain_cost(chain).parameters)
    return lambda cost: cost.parameters <= most


def flops_limit(chain: Chain, eta: float = 0.1) -> Constraint:
    """Allow at most (1 + eta) times this model's multiplications for one sample."""
    most = _most(eta, chain_cost(chain).macs)
    return lambda cost: cost.macs <= most


def activations_limit(chain: Chain, eta: float = 0.1) -> Constraint:
    """Allow at most (1 + eta) times as many values as this model's layers give for one sample."""
    most = _most(eta, chain_cost(chain).activations)
    return lambda cost: cost.activations <= most


def at_most(
    parameters: float = math.inf, macs: float = math.inf, activations: float = math.inf
) -> Constraint:
    """Allow what a client's device can do: so many parameters; multiplications and values for one sample."""
    return lambda cost: (
        cost.parameters <= parameters and cost.macs <= macs and cost.activations <= activations
    )


@dataclass(frozen=True)
class Assembly:
    """A model put together from blocks, as plain data: nothing is copied before it is built."""

    blocks: tuple[Ref, ...]
    stitches: tuple[Stitch | None, ...]
    """One before each block where shapes do not fit, and last the head if the last block is none."""
    filled: int
    """How many blocks the search found; the others are the client's own that complete them."""
    cost: Cost

    def is_own(self, model: str, chains: Chains) -> bool:
        """Say whether this is just the model itself."""
        return self.blocks == tuple(Ref(model, block.index) for block in chains[model])

    @property
    def frozen(self) -> int:
        """How many blocks stand before the first stitch: what they give never changes."""
        return next((i for i, stitch in enumerate(self.stitches) if stitch is not None), len(self.blocks))

    def build(self, chains: Chains, seed: int, copies: bool = True) -> Assembled:
        """Return the network; its stitches are drawn from the seed and what they join.

        Without copies it uses the models' own layers, which are then frozen and in evaluation mode.
        """
        modules = [block_of(chains, ref).module for ref in self.blocks]
        words = [f"{ref.model}:{ref.index}" for ref in self.blocks]
        with chance.torch_seeded(seed, "stitches", *words):
            return Assembled(_copies(modules) if copies else modules, self.stitches)

    def blueprint(self, specs: Mapping[str, Spec]) -> Blueprint:
        """Return what can travel: architectures instead of the names of the models' owners."""
        missing = {ref.model for ref in self.blocks} - set(specs)
        if missing:
            raise SettingsError(f"the specs of {', '.join(sorted(missing))} are not given")
        known = list(dict.fromkeys(specs[ref.model] for ref in self.blocks))
        blocks = tuple((known.index(specs[ref.model]), ref.index) for ref in self.blocks)
        return Blueprint(tuple(known), blocks, self.stitches)


def assemble(blocks: Sequence[Ref], chains: Chains, shape: Shape, outputs: int, filled: int) -> Assembly:
    """Put blocks in a row for inputs of this shape, with a stitch wherever two do not fit and a head if need be."""
    if not blocks:
        raise SettingsError("an assembly needs at least one block")
    cost, stitches = Cost(), []
    for block in (block_of(chains, ref) for ref in blocks):
        stitches.append(stitch_to(block, shape))
        cost += cost_of(stitches[-1]) + cost_of(block)
        shape = block.gives
    stitches.append(head_for(shape, outputs))
    return Assembly(tuple(blocks), tuple(stitches), filled, cost + cost_of(stitches[-1]))


def own_model(model: str, chains: Chains) -> Assembly:
    """Return a model as the assembly of its own blocks: it needs no stitches."""
    chain = chains[model]
    blocks = [Ref(model, block.index) for block in chain]
    return assemble(blocks, chains, chain[0].takes, chain[-1].gives[0], 0)


def stitch_to(block: FunctionalBlock, shape: Shape) -> Stitch | None:
    """Return the stitch from values of this shape to a block; none if they fit."""
    return None if block.fits(shape) else Stitch(shape, block.entry)


def head_for(shape: Shape, outputs: int) -> Stitch | None:
    """Return the head behind values of this shape; none if they are the outputs."""
    return None if shape == (outputs,) else Stitch(shape, (outputs,), head=True)


class Assembled(nn.Module):
    """Frozen blocks, always in evaluation mode, and stitches between them that can be trained."""

    def __init__(self, blocks: Iterable[nn.Module], stitches: Sequence[Stitch | None]) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(blocks).requires_grad_(False)
        self.stitches = nn.ModuleDict({str(i): s.build() for i, s in enumerate(stitches) if s is not None})
        self.train()

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits."""
        for step in self.steps():
            x = step(x)
        return x

    def steps(self, start: int = 0) -> list[nn.Module]:
        """Return stitches and blocks in order, from what stands before this block on."""
        found: list[nn.Module] = []
        for place in range(start, len(self.blocks) + 1):
            if str(place) in self.stitches:
                found.append(self.stitches[str(place)])
            found += self.blocks[place : place + 1]
        return found

    def train(self, mode: bool = True) -> Assembled:
        """Set the mode of the stitches; blocks stay in evaluation mode."""
        super().train(mode)
        self.blocks.eval()
        return self


@dataclass(frozen=True)
class Blueprint:
    """An assembly that can travel: with its tensors it can be built again where the models are not."""

    architectures: tuple[Spec, ...]
    blocks: tuple[tuple[int, int], ...]
    """For each block its architecture and its place there."""
    stitches: tuple[Stitch | None, ...]

    def build(self, tensors: Mapping[str, Tensor]) -> Assembled:
        """Return the network with these tensors; one that is missing, left over or of another shape is an error."""
        chains = {str(i): decompose(spec.build(0), spec.shape) for i, spec in enumerate(self.architectures)}
        modules = [block_of(chains, Ref(str(which), index)).module for which, index in self.blocks]
        model = Assembled(_copies(modules), self.stitches)
        try:
            model.load_state_dict(dict(tensors), strict=True)
        except RuntimeError as error:
            raise WireError(f"the tensors do not fit the assembly: {error}") from error
        return model

    def to_json(self) -> dict[str, Any]:
        """Return the blueprint as plain values."""
        return {
            "architectures": [spec.to_json() for spec in self.architectures],
            "blocks": [list(block) for block in self.blocks],
            "stitches": [stitch.to_json() if stitch else None for stitch in self.stitches],
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any], known: Mapping[str, type[Architecture]]) -> Blueprint:
        """Read a blueprint; only registered architectures can be built."""
        try:
            architectures = tuple(Spec.from_json(spec, known) for spec in data["architectures"])
            blocks = tuple((int(which), int(index)) for which, index in data["blocks"])
            stitches = tuple(Stitch.from_json(s) if s is not None else None for s in data["stitches"])
        except (TypeError, KeyError, ValueError) as error:
            raise WireError(f"this is no blueprint of an assembly: {error}") from error
        if len(stitches) != len(blocks) + 1 or not blocks:
            raise WireError(f"a blueprint of {len(blocks)} blocks has {len(stitches)} places for stitches")
        return cls(architectures, blocks, stitches)


def _copies(modules: Iterable[nn.Module]) -> list[nn.Module]:
    """Return a copy of each; a block that stands at two places becomes two."""
    return [copy.deepcopy(module) for module in modules]


def _most(eta: float, own: int) -> float:
    if not eta > -1:
        raise SettingsError(f"eta must be above -1, not {eta}: the limit is 1 + eta times the own model")
    return (1 + eta) * own if eta < math.inf else eta
