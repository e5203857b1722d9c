"""How the updates and the present version of an address become its next version.

Sums are exact: every contribution is rounded, in float64, to a grid that is fixed per tensor before the
first one arrives, so that adding commutes bit for bit. No order of arrival, no worker and no grouping
changes the result, and memory does not grow with the number of clients.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from intarsia.blocks.address import Address
from intarsia.blocks.block import Block, Layout, check_block, magnitude
from intarsia.blocks.errors import Refused, WireError
from intarsia.blocks.part import part

GRID_BITS = 40
CARRY_BITS = 12


@dataclass(frozen=True)
class Grid:
    """The step that contributions are rounded to, and the largest value that still adds up exactly."""

    step: float
    limit: float

    @classmethod
    def of(cls, present: Tensor) -> Grid:
        """Fix the grid from the version that was sent."""
        scale = 2.0 ** math.ceil(math.log2(max(1.0, magnitude(present))))
        return cls(scale * 2.0**-GRID_BITS, scale * 2.0**CARRY_BITS)

    def round(self, values: Tensor) -> Tensor:
        """Round float64 values, in place, to whole steps (a step is a power of two: scaling is exact)."""
        return values.div_(self.step).round_().mul_(self.step)


@dataclass
class Sums:
    """Running sums of one address: plain tensors and numbers, which can travel and be added up."""

    tensors: dict[str, Tensor]
    grids: Mapping[str, Grid]
    planned: int
    samples: int = 0
    scalars: list[float] = field(default_factory=list)

    def absorb(self, tensors: Mapping[str, Tensor], samples: int, scalars: list[float]) -> None:
        """Add sums made elsewhere."""
        for name, mine in self.tensors.items():
            if mine.is_floating_point():
                mine.add_(tensors[name])
            else:
                torch.maximum(mine, tensors[name], out=mine)
        self.samples += samples
        self.scalars.extend(scalars)


@part
class Merge:
    """The mean over the holders of an address, weighted by their samples; integer buffers by maximum."""

    name: ClassVar[str] = "mean"
    slices: ClassVar[bool] = False
    """Whether holders may hold leading slices of the block instead of the whole."""

    def open(self, present: Block, planned: int) -> Sums:
        """Start the sums of an address whose planned holders have `planned` samples in all."""
        grids = {n: Grid.of(t) for n, t in present.tensors.items() if t.is_floating_point()}
        return Sums({n: _start(t) for n, t in present.tensors.items()}, grids, planned)

    def add(
        self, sums: Sums, present: Block, update: Block, samples: int, values: Mapping[str, object]
    ) -> None:
        """Add one holder's update."""
        for name, tensor in update.tensors.items():
            self._add_tensor(sums, name, tensor, samples)
        sums.samples += samples

    def finish(self, sums: Sums, present: Block) -> Block:
        """Return the next version; with no update at all the present one stays."""
        if sums.samples == 0:
            return present
        return Block({n: _mean(sums, n, t) for n, t in present.tensors.items()}, present.buffers)

    def _add_tensor(self, sums: Sums, name: str, value: Tensor, samples: int) -> None:
        total = sums.tensors[name]
        if value.is_floating_point():
            total.add_(sums.grids[name].round(value.double().mul_(samples / sums.planned)))
        else:
            torch.maximum(total, value, out=total)


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
            if name in present.buffers:
                self._add_tensor(sums, name, tensor, samples)
            else:
                change = present.tensors[name].double().sub_(tensor).div_(step_weight)
                sums.tensors[name].add_(sums.grids[name].round(change.mul_(samples / sums.planned)))
        sums.samples += samples
        sums.scalars.append(samples * step_weight)

    def finish(self, sums: Sums, present: Block) -> Block:
        """Return present - tau_eff * mean of the normalised changes."""
        if sums.samples == 0:
            return present
        steps = math.fsum(sums.scalars) / sums.samples
        tensors = {}
        for name, now in present.tensors.items():
            mean = _mean(sums, name, now.double() if now.is_floating_point() else now)
            buffer = name in present.buffers
            tensors[name] = mean.to(now.dtype) if buffer else now.double().sub_(mean * steps).to(now.dtype)
        return Block(tensors, present.buffers)


@part
class SliceMean(Merge):
    """Per entry, the mean over those who hold it (HeteroFL, Diao et al. 2021, eq. 3-4).

    A holder has the leading slice of every tensor along every dimension. Entries that nobody trained keep
    their value.
    """

    name: ClassVar[str] = "slices"
    slices: ClassVar[bool] = True

    def open(self, present: Block, planned: int) -> Sums:
        """Start sums of values and, beside each, sums of the samples behind every entry."""
        sums = Merge.open(self, present, planned)
        for name in sums.grids:
            sums.tensors[_held(name)] = torch.zeros_like(sums.tensors[name])
        return sums

    def finish(self, sums: Sums, present: Block) -> Block:
        """Divide every entry by the share of those who hold it."""
        tensors = {}
        for name, now in present.tensors.items():
            if now.is_floating_point():
                held = sums.tensors[_held(name)]
                mean = sums.tensors[name] / (held / sums.planned)
                tensors[name] = torch.where(held > 0, mean, now.double()).to(now.dtype)
            else:
                tensors[name] = sums.tensors[name]
        return Block(tensors, present.buffers)

    def _add_tensor(self, sums: Sums, name: str, value: Tensor, samples: int) -> None:
        corner = tuple(slice(0, size) for size in value.shape)
        total = sums.tensors[name][corner]
        if value.is_floating_point():
            total.add_(sums.grids[name].round(value.double().mul_(samples / sums.planned)))
            sums.tensors[_held(name)][corner].add_(samples)
        else:
            torch.maximum(total, value, out=total)


MERGES: dict[str, type[Merge]] = {merge.name: merge for merge in (Merge, Nova, SliceMean)}


def leading_slice(block: Block, layout: Layout) -> Block:
    """Return the leading part of every tensor that this layout asks for."""
    if block.layout == layout:
        return block
    tensors = {
        entry.name: block.tensors[entry.name][tuple(slice(0, s) for s in entry.shape)].clone()
        for entry in layout
    }
    return Block(tensors, block.buffers)


class Fold:
    """Merges updates as they arrive, address by address; folds made apart add up to the same bits."""

    def __init__(
        self, merge: Merge, present: Mapping[Address, Block], planned: Mapping[Address, int]
    ) -> None:
        self.merge = merge
        self.present = present
        self.planned = planned
        self._sums: dict[Address, Sums] = {}

    def add(
        self,
        blocks: Mapping[Address, Block],
        expected: Mapping[Address, Layout],
        samples: int,
        values: Mapping[str, object],
    ) -> None:
        """Check one client's update and add it: all of its blocks, or none."""
        if blocks.keys() != expected.keys():
            odd = ", ".join(str(a) for a in sorted(blocks.keys() ^ expected.keys()))
            raise Refused(f"blocks returned and blocks planned differ in {odd}")
        for address, block in blocks.items():
            largest = check_block(block, expected[address], address.block)
            _check_carry(largest, self._of(address).grids, address.block)
        for address, block in blocks.items():
            self.merge.add(self._of(address), self.present[address], block, samples, values)

    def finish(self) -> dict[Address, Block]:
        """Return the next version of every address that had an update."""
        return {a: self.merge.finish(sums, self.present[a]) for a, sums in sorted(self._sums.items())}

    def absorb(self, header: Mapping[str, object], tensors: Block) -> None:
        """Add a fold that was made elsewhere and came through `dump`."""
        for text, numbers in header.items():
            address = Address.parse(text)
            if address not in self.present or not isinstance(numbers, dict):
                raise WireError(f"a fold names {text}, which is not part of this exchange")
            prefix = f"{text}/"
            own = {n.removeprefix(prefix): t for n, t in tensors.tensors.items() if n.startswith(prefix)}
            self._of(address).absorb(own, numbers["samples"], numbers["scalars"])

    def dump(self) -> tuple[dict[str, object], Block]:
        """Return the sums as plain values and tensors."""
        header: dict[str, object] = {
            str(a): {"samples": s.samples, "scalars": s.scalars} for a, s in sorted(self._sums.items())
        }
        tensors = {f"{a}/{n}": t for a, s in sorted(self._sums.items()) for n, t in s.tensors.items()}
        return header, Block(tensors)

    def _of(self, address: Address) -> Sums:
        if address not in self._sums:
            self._sums[address] = self.merge.open(self.present[address], self.planned[address])
        return self._sums[address]


def _held(name: str) -> str:
    return f"{name}#samples"


def _start(tensor: Tensor) -> Tensor:
    if tensor.is_floating_point():
        return torch.zeros(tensor.shape, dtype=torch.float64)
    return tensor.clone()


def _mean(sums: Sums, name: str, like: Tensor) -> Tensor:
    total = sums.tensors[name]
    return (total / (sums.samples / sums.planned)).to(like.dtype) if like.is_floating_point() else total


def _step_weight(values: Mapping[str, object]) -> float:
    weight = values.get("step_weight")
    if not isinstance(weight, (int, float)) or not 1 <= weight < math.inf:
        raise Refused(f"FedNova needs a 'step_weight' of at least 1 in the update, got {weight!r}")
    return float(weight)


def _check_carry(largest: Mapping[str, float], grids: Mapping[str, Grid], name: str) -> None:
    for tensor_name, value in largest.items():
        limit = grids[tensor_name].limit
        if value > limit:
            raise Refused(
                f"tensor '{tensor_name}' holds {value:.3g}, more than {limit:.3g} can be merged: "
                "training diverged; lower the learning rate",
                block=name,
            )
