"""The updates of an address, one above the other: as changes against the version that was sent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from intarsia.blocks import Block


@dataclass(frozen=True)
class Stack:
    """A row an update, in double precision; rows are made when they are asked for."""

    present: Block
    updates: Sequence[Block]
    mix: Tensor | None = None
    """What each row becomes: a mean of rows."""

    @cached_property
    def names(self) -> list[str]:
        """The parameters: statistics and whole numbers are no part of distances."""
        return [
            name
            for name, tensor in sorted(self.present.tensors.items())
            if tensor.is_floating_point() and name not in self.present.buffers
        ]

    def rows(self, name: str) -> Tensor:
        """Return the changes of a parameter, a flat row an update."""
        start = self.present.tensors[name].double().flatten()
        rows = torch.stack([update.tensors[name].double().flatten() - start for update in self.updates])
        return rows if self.mix is None else self.mix @ rows

    def mixed(self, mix: Tensor) -> Stack:
        """Return a stack whose rows are means of these."""
        return replace(self, mix=mix)

    def distances(self) -> Tensor:
        """Return how far each update is from each other one, over all parameters."""
        count = len(self.updates)
        squares = torch.zeros(count, count, dtype=torch.float64)
        for name in self.names:
            rows = self.rows(name)
            squares += torch.cdist(rows, rows, compute_mode="donot_use_mm_for_euclid_dist").square()
        return squares.sqrt()

    def distances_from(self, point: Mapping[str, Tensor]) -> Tensor:
        """Return how far each update is from a point."""
        squares = torch.zeros(len(self.updates), dtype=torch.float64)
        for name in self.names:
            squares += (self.rows(name) - point[name]).square().sum(1)
        return squares.sqrt()

    def middle(self, name: str) -> Tensor:
        """Return the coordinate median of a tensor that is no parameter; of whole numbers, one that somebody sent."""
        present = self.present.tensors[name]
        ordered = torch.stack([_sortable(update.tensors[name]) for update in self.updates]).sort(dim=0).values
        low, high = ordered[(len(ordered) - 1) // 2], ordered[len(ordered) // 2]
        return ((low + high) / 2 if present.is_floating_point() else low).to(present.dtype)


def _sortable(tensor: Tensor) -> Tensor:
    return tensor.double() if tensor.is_floating_point() else tensor.to(torch.int64)
