"""How the updates and the present version of an address become its next version."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from intarsia.blocks.block import Block, Layout
from intarsia.blocks.sums import Grid, Sums, in_pieces
from intarsia.core import part

Holder = tuple[int, Mapping[str, object]]
"""What a holder of an address counts, and the values that came with its update."""
Gathered = tuple[Block, int]
"""A holder's update of an address, and what it counts."""


class Stale(NamedTuple):
    """Sums of changes against a version, and how often that has been replaced since."""

    staleness: int
    version: Block
    sums: Sums


@part
class Merge:
    """The mean over the holders of an address, weighted by their samples; integer buffers by maximum."""

    name: ClassVar[str] = "mean"
    partial: ClassVar[bool] = False
    """Whether a holder may hold a part of the block: what `view` makes of it for the layout of its model."""
    of_sums: ClassVar[bool] = True
    """Whether the next version follows from the present one and the sums of changes alone, so that noise on these
    covers it. A subclass that does not say so itself is taken for one that reads more."""
    gain: ClassVar[float] = 1.0
    """How many times a change may count at most, beside the weight of who made it."""
    essential: ClassVar[bool] = False
    """Whether the method that brings it is nothing without it, so that no merge against hostile clients replaces it."""
    gathers: ClassVar[bool] = False
    """Whether it needs all updates of an address at once (`combine`): none is added up before the last has come."""

    adds_up: ClassVar[bool] = True
    """Whether it adds whole steps and nothing else, so that masks cancel. One with an `add` or `open` of its own that
    does not say so again is not trusted to."""

    def __init_subclass__(cls) -> None:
        """Let a merge be known as one of sums only if it says so itself."""
        cls.of_sums = bool(vars(cls).get("of_sums", False))

    def view(self, block: Block, layout: Layout) -> Block:
        """Return what a holder has of a block; by default all of it."""
        return block

    def common(self, one: Block, other: Block) -> Block | None:
        """Return what two holders share whose blocks differ in layout; by default nothing."""
        return None

    def open(self, present: Block, planned: int) -> Sums:
        """Start the sums of an address whose planned holders have `planned` samples in all."""
        grids = self.grids(present)
        tensors = {
            n: torch.zeros(t.shape, dtype=grids[n].dtype) if n in grids else t.clone()
            for n, t in present.tensors.items()
        }
        return Sums(tensors, grids, planned)

    def grids(self, present: Block) -> dict[str, Grid]:
        """Return the grid of every tensor that is summed: it also says how large a value may be."""
        return {
            n: Grid.of(t, n in present.buffers) for n, t in present.tensors.items() if t.is_floating_point()
        }

    def combine(self, present: Block, updates: Sequence[Gathered]) -> Block:
        """Return the next version of all updates at once, in the order of their clients' names."""
        raise NotImplementedError(f"merge '{self.name}' gathers: it needs a combine of its own")

    def flush(self, present: Block, parts: Sequence[Stale]) -> Block:
        """Return the next version from changes against this and older versions: for servers that do not wait."""
        raise NotImplementedError(
            f"merge '{self.name}' knows of no older versions: it needs a flush of its own"
        )

    def add(
        self, sums: Sums, present: Block, update: Block, samples: int, values: Mapping[str, object]
    ) -> None:
        """Add one holder's update."""
        for name, tensor in update.tensors.items():
            self._add_tensor(sums, name, present.tensors[name], tensor, samples / sums.planned)
        sums.samples += samples

    def sum_bytes(self, present: Block) -> int:
        """Return how many bytes the sums of an address take when they travel."""
        return sum(
            8 * t.numel() if t.is_floating_point() else t.numel() * t.element_size()
            for t in present.tensors.values()
        )

    def scalars(self, samples: int, values: Mapping[str, object]) -> list[float]:
        """Return the numbers that one holder adds to the list of the sums."""
        return []

    def finish(self, sums: Sums, present: Block) -> Block:
        """Return the next version; with no update at all the present one stays."""
        if sums.samples == 0:
            return present
        tensors = {
            n: sums.moved(n, t) if n in sums.grids else sums.tensors[n] for n, t in present.tensors.items()
        }
        return Block(tensors, present.buffers)

    def _add_tensor(self, sums: Sums, name: str, present: Tensor, value: Tensor, weight: float) -> None:
        total = sums.tensors[name]
        if name not in sums.grids:
            torch.maximum(total, value, out=total)
            return
        for piece, new, old in in_pieces(total, value, present):
            change = new.to(torch.float64, copy=True).sub_(old)
            piece.add_(sums.grids[name].count(change, weight))
