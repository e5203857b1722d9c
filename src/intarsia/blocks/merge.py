"""How the updates and the present version of an address become its next version.

Sums are exact: every contribution is a change against the present version, rounded to whole steps of a
grid that is fixed per tensor before the first one arrives, and summed as whole numbers, so that adding
commutes bit for bit. No order of arrival, no worker and no grouping changes the result, memory does not grow
with the number of clients, and a block that nobody changed stays the same to the last bit.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from intarsia.blocks.address import Address
from intarsia.blocks.block import Block, Layout, check_block, magnitude
from intarsia.blocks.plain import LARGEST, shown
from intarsia.core import IntarsiaError, Refused, WireError, part

Holder = tuple[int, Mapping[str, object]]
"""What a holder of an address counts, and the values that came with its update."""
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
        fine, room, dtype = (30, 31, torch.int64) if buffer else (38, 13, torch.float64)
        return cls(scale * 2.0**-fine, scale * 2.0**room, dtype)

    def count(self, values: Tensor, weight: float) -> Tensor:
        """Return float64 values, weighted, in whole steps (a step is a power of two: dividing by it is exact)."""
        return values.mul_(weight / self.step).round_().to(self.dtype)


def _pieces(*tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
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
    planned: int
    everyone: int = 0
    """The samples of all clients of the exchange that share this address, holders or not."""
    samples: int = 0
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
        for new, old, total in _pieces(moved, present, self.tensors[name]):
            new.copy_(old.double().add_(total.double().mul(step), alpha=times))
        return moved


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
        for piece, new, old in _pieces(total, value, present):
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
class Literal(Merge):
    """sum n_m / n of the holders' values, n counting clients that do not hold the block too (FedMN as printed).

    They are the clients of the exchange in the block's group: all, or, where an attribute divides them, those whose
    holders would share this address. The weights of a block that some do not hold add up to less than one: it
    shrinks. A holder whose update fails is left out of the mean, and shrinks nothing. For comparison only.
    """

    name: ClassVar[str] = "literal"

    def finish(self, sums: Sums, present: Block) -> Block:
        """Shrink the mean by the holders' share of all samples; with no update at all the present version stays."""
        if sums.samples == 0:
            return present
        mean = Merge.finish(self, sums, present)
        share = sums.planned / sums.everyone
        tensors = {
            n: t if n in present.buffers or n not in sums.grids else t.double().mul_(share).to(t.dtype)
            for n, t in mean.tensors.items()
        }
        return Block(tensors, present.buffers)


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


SAMPLES = "#samples"
ROWS = "rows"
"""The value that says which rows of a tensor an update counts in."""
MERGES: dict[str, type[Merge]] = {merge.name: merge for merge in (Merge, Nova, SliceMean, Relaxed, Literal)}


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
        self,
        merge: Merge,
        present: Mapping[Address, Block],
        planned: Mapping[Address, int],
        everyone: Mapping[Address, int] | None = None,
    ) -> None:
        self.merge = merge
        self.present = present
        self.planned = planned
        self.everyone = planned if everyone is None else everyone
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
            _check_carry(largest, self._of(address).grids, self.present[address].buffers, address.block)
        for address, block in blocks.items():
            self.merge.add(self._of(address), self.present[address], block, samples, values)

    def finish(self) -> dict[Address, Block]:
        """Return the next version of every address that had an update."""
        merged = {a: self.merge.finish(sums, self.present[a]) for a, sums in sorted(self._sums.items())}
        for address, block in merged.items():
            if block.layout != self.present[address].layout:
                raise IntarsiaError(
                    f"merge '{self.merge.name}' changed the names, shapes or types of {address}: "
                    "it must keep the layout of the present version"
                )
        return merged

    def absorb(self, header: Mapping[str, object], tensors: Block) -> None:
        """Add a fold that was made elsewhere and came through `dump`."""
        for text, numbers in header.items():
            address = Address.parse(text)
            if address not in self.present or not isinstance(numbers, dict):
                raise WireError(f"a fold names {text}, which is not part of this exchange")
            sums = self._of(address)
            own = {name: tensors.tensors[f"{text}/{name}"] for name in sums.tensors}
            sums.absorb(own, numbers["samples"], numbers["scalars"])

    def check_sums(
        self, header: Mapping[str, object], tensors: Block, holders: Mapping[Address, Sequence[Holder]]
    ) -> None:
        """Refuse a fold made elsewhere that cannot be the sums of these holders' updates."""
        if header.keys() != {str(address) for address in holders}:
            odd = ", ".join(sorted(header.keys() ^ {str(address) for address in holders}))
            raise Refused(f"sums that came and sums that were planned differ in {odd}")
        expected = {}
        for address, own in holders.items():
            count = sum(samples for samples, _ in own)
            scalars = [number for holder in own for number in self.merge.scalars(*holder)]
            _check_numbers(header[str(address)], count, scalars, address)
            sums = self._of(address)
            for name, mine in sums.tensors.items():
                bound = _most(name, sums.grids.get(name), count, sums.planned)
                expected[f"{address}/{name}"] = (mine, bound)
        if tensors.tensors.keys() != expected.keys():
            odd = ", ".join(sorted(tensors.tensors.keys() ^ expected.keys()))
            raise Refused(f"tensors of sums that came and that were planned differ in {odd}")
        for name, (mine, bound) in expected.items():
            _check_sum(name, tensors.tensors[name], mine, bound)

    def dump(self) -> tuple[dict[str, object], Block]:
        """Return the sums as plain values and tensors."""
        header: dict[str, object] = {
            str(a): {"samples": s.samples, "scalars": s.scalars} for a, s in sorted(self._sums.items())
        }
        tensors = {f"{a}/{n}": t for a, s in sorted(self._sums.items()) for n, t in s.tensors.items()}
        return header, Block(tensors)

    def _of(self, address: Address) -> Sums:
        if address not in self._sums:
            sums = self.merge.open(self.present[address], self.planned[address])
            sums.everyone = self.everyone[address]
            self._sums[address] = sums
        return self._sums[address]


def _check_numbers(numbers: object, samples: int, scalars: Sequence[float], address: Address) -> None:
    got = numbers.get("samples") if isinstance(numbers, dict) else None
    if not isinstance(numbers, dict) or type(got) is not int or got != samples:
        raise Refused(f"the sums of {address} stand for {shown(got)} samples, planned were {samples}")
    told = numbers.get("scalars")
    if not isinstance(told, list) or not _same_numbers(told, scalars):
        raise Refused(
            f"the sums of {address} come with other scalars than the single updates", block=address.block
        )


def _same_numbers(told: Sequence[object], known: Sequence[float]) -> bool:
    numbers = [x for x in told if isinstance(x, (int, float)) and not isinstance(x, bool)]
    return len(numbers) == len(told) and sorted(numbers) == sorted(known)


def _most(name: str, grid: Grid | None, count: int, planned: int) -> tuple[float, float]:
    """Return between which numbers a sum of updates with so many samples must lie."""
    if name.endswith(SAMPLES):
        return 0, count
    if grid is None:
        return -LARGEST, LARGEST
    # A change is hardly more than the limit (a value's, and that of the version sent); FedNova divides it by
    # a half at least.
    most = 2.01 * grid.limit / grid.step * min(1.0, count / planned) + 1
    return -most, most


def _check_sum(name: str, got: Tensor, mine: Tensor, bounds: tuple[float, float]) -> None:
    """Check one tensor of sums: its form, and that its values lie within bounds."""
    if got.shape != mine.shape or got.dtype != mine.dtype:
        form, wanted = (f"{t.dtype}{list(t.shape)}" for t in (got, mine))
        raise Refused(f"the sums '{name}' came as {form}, expected {wanted}")
    low, high = (float(end) for end in torch.aminmax(got)) if got.numel() else bounds
    if not (bounds[0] <= low and high <= bounds[1]):  # a NaN is no sum either
        raise Refused(f"the sums '{name}' are larger than any update that could be merged")


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


def _check_carry(
    largest: Mapping[str, float], grids: Mapping[str, Grid], buffers: frozenset[str], name: str
) -> None:
    for tensor_name, value in largest.items():
        limit = grids[tensor_name].limit
        if value > limit:
            cause = (
                "scale the inputs" if tensor_name in buffers else "training diverged: lower the learning rate"
            )
            raise Refused(
                f"tensor '{tensor_name}' holds {value:.3g}, more than {limit:.3g} can be merged; {cause}",
                block=name,
            )
