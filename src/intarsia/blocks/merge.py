"""How the updates and the present version of an address become its next version."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from intarsia.blocks.block import Block, Layout
from intarsia.blocks.sums import SAMPLES, Grid, Sums, in_pieces
from intarsia.core import Refused, part

Holder = tuple[int, Mapping[str, object]]
"""What a holder of an address counts, and the values that came with its update."""


@part
class Merge:
    """The mean over the holders of an address, weighted by their samples; integer buffers by maximum."""

    name: ClassVar[str] = "mean"
    slices: ClassVar[bool] = False
    """Whether holders may hold leading slices of the block instead of the whole."""

    def open(self, present: Block, planned: int) -> Sums:
        """Start the sums of an address whose planned holders have `planned` samples in all."""
        grids = {
            n: Grid.of(t, n in present.buffers) for n, t in present.tensors.items() if t.is_floating_point()
        }
        tensors = {
            n: torch.zeros(t.shape, dtype=grids[n].dtype) if n in grids else t.clone()
            for n, t in present.tensors.items()
        }
        return Sums(tensors, grids, planned)

    def add(
        self, sums: Sums, present: Block, update: Block, samples: int, values: Mapping[str, object]
    ) -> None:
        """Add one holder's update."""
        for name, tensor in update.tensors.items():
            self._add_tensor(sums, name, present.tensors[name], tensor, samples / sums.planned)
        sums.samples += samples

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


@part
class Relaxed(Merge):
    """The present version and `beta` times its distance to the holders' mean (pFedMe, Dinh et al. 2020, line 11)."""

    name: ClassVar[str] = "relaxed"

    beta: Annotated[float, Field(gt=0)] = 1.0

    def finish(self, sums: Sums, present: Block) -> Block:
        """Go `beta` of the way to the mean; buffers go all of it."""
        mean = Merge.finish(self, sums, present)
        tensors = {
            n: t if n in present.buffers or n not in sums.grids else self._part_way(present.tensors[n], t)
            for n, t in mean.tensors.items()
        }
        return Block(tensors, present.buffers)

    def _part_way(self, now: Tensor, mean: Tensor) -> Tensor:
        return now.double().add((mean.double() - now.double()).mul_(self.beta)).to(now.dtype)


@part
class Nova(Merge):
    """FedNova's normalised averaging (Wang et al. 2020, eq. 6) of the parameters; buffers: mean.

    Every holder's change is divided by the weight of its local steps (`step_weight` of its update, the
    norm of a_i), and the mean of those is applied tau_eff = sum p_i |a_i| times.
    """

    name: ClassVar[str] = "nova"

    def add(
        self, sums: Sums, present: Block, update: Block, samples: int, values: Mapping[str, object]
    ) -> None:
        """Add one holder's normalised change."""
        step_weight = _step_weight(values)
        for name, tensor in update.tensors.items():
            divisor = 1.0 if name in present.buffers else step_weight
            weight = samples / sums.planned / divisor
            self._add_tensor(sums, name, present.tensors[name], tensor, weight)
        sums.samples += samples
        sums.scalars.extend(self.scalars(samples, values))

    def scalars(self, samples: int, values: Mapping[str, object]) -> list[float]:
        """Return the weight of all steps of a holder."""
        return [samples * _step_weight(values)]

    def finish(self, sums: Sums, present: Block) -> Block:
        """Return present + tau_eff * mean of the normalised changes."""
        if sums.samples == 0:
            return present
        steps = math.fsum(sums.scalars) / sums.samples
        tensors = {}
        for name, now in present.tensors.items():
            if name in sums.grids:
                times = 1.0 if name in present.buffers else steps
                tensors[name] = sums.moved(name, now, times)
            else:
                tensors[name] = sums.tensors[name]
        return Block(tensors, present.buffers)


@part
class SliceMean(Merge):
    """Per entry, the mean over those who hold it (HeteroFL, Diao et al. 2021, eq. 3-4).

    A holder has the leading slice of every tensor along every dimension. An update may say of a tensor which rows
    of it count (values `rows`, by the tensor's name): its others are as if it did not hold them. Entries that nobody
    trained keep their value.
    """

    name: ClassVar[str] = "slices"
    slices: ClassVar[bool] = True

    def open(self, present: Block, planned: int) -> Sums:
        """Start sums of values and, beside each, sums of the samples behind every entry."""
        sums = Merge.open(self, present, planned)
        for name in sums.grids:
            sums.tensors[name + SAMPLES] = torch.zeros(present.tensors[name].shape, dtype=torch.int64)
        return sums

    def add(
        self, sums: Sums, present: Block, update: Block, samples: int, values: Mapping[str, object]
    ) -> None:
        """Add one holder's slice."""
        rows = _rows(values)
        for name, tensor in update.tensors.items():
            corner = tuple(slice(0, size) for size in tensor.shape)
            part_sums = Sums({name: sums.tensors[name][corner]}, sums.grids, sums.planned)
            now, counts = present.tensors[name][corner], _counting(tensor, rows.get(name))
            value = torch.where(counts, tensor, now) if name in rows else tensor
            self._add_tensor(part_sums, name, now, value, samples / sums.planned)
            if name in sums.grids:
                sums.tensors[name + SAMPLES][corner].add_(samples * counts)
        sums.samples += samples

    def finish(self, sums: Sums, present: Block) -> Block:
        """Divide every entry by the share of those who hold it."""
        tensors = {}
        for name, now in present.tensors.items():
            if name in sums.grids:
                held = sums.tensors[name + SAMPLES].clamp(min=1).double().div_(sums.planned)
                change = sums.tensors[name].double().mul(sums.grids[name].step).div_(held)
                tensors[name] = now.double().add(change).to(now.dtype)
            else:
                tensors[name] = sums.tensors[name]
        return Block(tensors, present.buffers)


ROWS = "rows"
"""The value that says which rows of a tensor an update counts in."""
MERGES: dict[str, type[Merge]] = {merge.name: merge for merge in (Merge, Nova, SliceMean, Relaxed)}


def leading_slice(block: Block, layout: Layout) -> Block:
    """Return the leading part of every tensor that this layout asks for."""
    if block.layout == layout:
        return block
    tensors = {
        entry.name: block.tensors[entry.name][tuple(slice(0, s) for s in entry.shape)].clone()
        for entry in layout
    }
    return Block(tensors, block.buffers)


def _rows(values: Mapping[str, object]) -> dict[str, list[int]]:
    """Return the rows that an update counts in, by tensor; all of a tensor that is not named."""
    rows = values.get(ROWS, {})
    if not isinstance(rows, dict) or not all(
        isinstance(own, list) and all(type(row) is int and row >= 0 for row in own) for own in rows.values()
    ):
        raise Refused(
            f"the update says {str(rows)[:80]} of the rows it counts in: lists of row numbers were expected"
        )
    return rows


def _counting(tensor: Tensor, rows: list[int] | None) -> Tensor:
    """Return which rows of a tensor count, so that it can be laid over the tensor; a number that it lacks is none."""
    if rows is None or not tensor.dim():
        return torch.ones((), dtype=torch.bool)
    counts = torch.zeros(len(tensor), dtype=torch.bool)
    counts[[row for row in rows if row < len(tensor)]] = True
    return counts.view(-1, *[1] * (tensor.dim() - 1))


def _step_weight(values: Mapping[str, object]) -> float:
    weight = values.get("step_weight")
    if not isinstance(weight, (int, float)) or isinstance(weight, bool) or not 0.5 <= weight < math.inf:
        raise Refused(
            f"FedNova needs a 'step_weight' in the update, about the number of steps, got {weight!r}; "
            "with a proximal objective, keep lr * mu well below 1"
        )
    return float(weight)
