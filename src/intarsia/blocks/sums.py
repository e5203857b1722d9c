"""Exact sums: changes in whole steps of a grid, which add up to the same bits in any order.

Every contribution is a change against the present version, rounded to whole steps of a grid that is fixed per tensor
before the first one arrives, and summed as whole numbers, so that adding commutes bit for bit. No order of arrival, no
worker and no grouping changes the result, memory does not grow with the number of clients, and a block that nobody
changed stays the same to the last bit.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from intarsia.blocks.block import magnitude

PIECE = 1 << 17
"""Numbers that are added up at once: so many, in double precision, stay in a core's cache."""


@dataclass(frozen=True)
class Grid:
    """The step that contributions are rounded to, and the largest value that still adds up exactly."""

    step: float
    limit: float
    dtype: torch.dtype
    """What steps are summed in: double precision holds whole numbers up to 2^53, and is faster than integers."""

    @classmethod
    def of(cls, present: Tensor, buffer: bool) -> Grid:
        """Fix the grid from the version that was sent; statistics of raw inputs need more room above."""
        scale = 2.0 ** math.ceil(math.log2(max(1.0, magnitude(present))))
        fine, room, most, dtype = (30, 31, 62, torch.int64) if buffer else (38, 13, 20, torch.float64)
        # The room above grows with the version sent: without an end, a client could raise it round by round.
        return cls(scale * 2.0**-fine, min(scale * 2.0**room, max(scale, 2.0**most)), dtype)

    def count(self, values: Tensor, weight: float) -> Tensor:
        """Return float64 values, weighted, in whole steps (a step is a power of two: dividing by it is exact)."""
        return values.mul_(weight / self.step).round_().to(self.dtype)


def in_pieces(*tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Yield tensors of one shape in pieces that fit into a core's cache; those that do not lie in one piece, whole."""
    if tensors[0].numel() <= PIECE or not all(tensor.is_contiguous() for tensor in tensors):
        yield tensors
        return
    yield from zip(*(torch.split(tensor.view(-1), PIECE) for tensor in tensors), strict=True)


@dataclass
class Sums:
    """Running sums of one address: plain tensors and numbers, which can travel and be added up."""

    tensors: dict[str, Tensor]
    grids: Mapping[str, Grid]
    """The grid of every tensor that is summed; the others keep the larger entry."""
    planned: float
    samples: float = 0
    scalars: list[float] = field(default_factory=list)

    def absorb(self, tensors: Mapping[str, Tensor], samples: int, scalars: list[float]) -> None:
        """Add sums made elsewhere."""
        for name, mine in self.tensors.items():
            if name in self.grids or name.endswith(SAMPLES):
                mine.add_(tensors[name])
            else:
                torch.maximum(mine, tensors[name], out=mine)
        self.samples += samples
        self.scalars.extend(scalars)

    def moved(self, name: str, present: Tensor, times: float = 1.0) -> Tensor:
        """Return a tensor's present value plus so many times the mean of what was added to it."""
        step, moved = self.grids[name].step / (self.samples / self.planned), torch.empty_like(present)
        for new, old, total in in_pieces(moved, present, self.tensors[name]):
            new.copy_(old.double().add_(total.double().mul(step), alpha=times))
        return moved


SAMPLES = "#samples"
