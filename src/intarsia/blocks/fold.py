"""The updates of one exchange, checked and merged as they arrive."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor

from intarsia.blocks.address import Address
from intarsia.blocks.block import Block, Layout, check_block
from intarsia.blocks.merge import Gathered, Holder, Merge
from intarsia.blocks.plain import LARGEST, shown
from intarsia.blocks.sums import SAMPLES, Grid, Sums
from intarsia.core import IntarsiaError, Refused, WireError


class Fold:
    """Merges updates as they arrive, address by address; folds made apart add up to the same bits.

    One that only checks merges nothing: someone else will, once all updates are there.
    """

    def __init__(
        self,
        merge: Merge,
        present: Mapping[Address, Block],
        planned: Mapping[Address, int],
        only_checks: bool = False,
    ) -> None:
        self.merge = merge
        self.present = present
        self.planned = planned
        self.only_checks = only_checks
        self._sums: dict[Address, Sums] = {}
        self._grids: dict[Address, Mapping[str, Grid]] = {}
        self._gathered: dict[Address, list[Gathered]] = {}

    def add(
        self,
        blocks: Mapping[Address, Block],
        expected: Mapping[Address, Layout],
        samples: int,
        values: Mapping[str, object],
    ) -> None:
        """Check one client's update and add it: all of its blocks, or none."""
        check_planned(blocks, expected, "blocks returned and blocks planned")
        for address, block in blocks.items():
            largest = check_block(block, expected[address], address.block)
            _check_carry(largest, self._grids_of(address), self.present[address].buffers, address.block)
        if self.only_checks:
            return
        for address, block in blocks.items():
            if self.merge.gathers:
                self._gathered.setdefault(address, []).append((block, samples))
            else:
                self.merge.add(self._of(address), self.present[address], block, samples, values)

    def finish(self) -> dict[Address, Block]:
        """Return the next version of every address that had an update."""
        merged = {a: self.merge.finish(sums, self.present[a]) for a, sums in sorted(self._sums.items())}
        for address, updates in sorted(self._gathered.items()):
            merged[address] = self.merge.combine(self.present[address], updates)
        for address, block in merged.items():
            if block.layout != self.present[address].layout:
                raise IntarsiaError(
                    f"merge '{self.merge.name}' changed the names, shapes or types of {address}: "
                    "it must keep the layout of the present version"
                )
        return merged

    def sums(self, address: Address) -> Sums:
        """Return the sums of an address so far; of one that nothing came for, those of nothing."""
        return self._of(address)

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
        check_planned(header, holders, "sums that came and sums that were planned")
        expected = {}
        for address, own in holders.items():
            count = sum(samples for samples, _ in own)
            scalars = [number for holder in own for number in self.merge.scalars(*holder)]
            check_numbers(header[str(address)], count, scalars, address)
            sums = self._of(address)
            for name, mine in sums.tensors.items():
                bound = _most(name, sums.grids.get(name), self.merge.gain * count / sums.planned, count)
                expected[f"{address}/{name}"] = (mine, bound)
        check_planned(tensors.tensors, expected, "tensors of sums that came and that were planned")
        for name, (mine, bound) in expected.items():
            _check_sum(name, tensors.tensors[name], mine, bound)

    def dump(self) -> tuple[dict[str, object], Block]:
        """Return the sums as plain values and tensors."""
        header: dict[str, object] = {
            str(a): {"samples": s.samples, "scalars": s.scalars} for a, s in sorted(self._sums.items())
        }
        tensors = {f"{a}/{n}": t for a, s in sorted(self._sums.items()) for n, t in s.tensors.items()}
        return header, Block(tensors)

    def _grids_of(self, address: Address) -> Mapping[str, Grid]:
        if address not in self._grids:
            self._grids[address] = self.merge.grids(self.present[address])
        return self._grids[address]

    def _of(self, address: Address) -> Sums:
        if address not in self._sums:
            sums = self.merge.open(self.present[address], self.planned[address])
            self._sums[address] = sums
        return self._sums[address]


def check_planned(came: Iterable[object], planned: Iterable[object], what: str) -> None:
    """Refuse what came under other names than were planned."""
    if set(came) == set(planned):
        return
    odd = {str(name) for name in came} ^ {str(name) for name in planned}
    if odd:
        raise Refused(f"{what} differ in {', '.join(sorted(odd))}")


def check_numbers(numbers: object, samples: int, scalars: Sequence[float], address: Address) -> None:
    """Refuse the plain half of an address's sums that is not that of so many samples and of these scalars."""
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


def _most(name: str, grid: Grid | None, share: float, count: int) -> tuple[float, float]:
    """Return between which numbers a sum of updates with such a weight, and so many samples, must lie."""
    if name.endswith(SAMPLES):
        return 0, count
    if grid is None:
        return -LARGEST, LARGEST
    # A change is hardly more than the limit: a value's, and that of the version sent.
    most = 1.01 * grid.limit / grid.step * share + 1
    return -most, most


def _check_sum(name: str, got: Tensor, mine: Tensor, bounds: tuple[float, float]) -> None:
    """Check one tensor of sums: its form, and that its values lie within bounds."""
    if got.shape != mine.shape or got.dtype != mine.dtype:
        form, wanted = (f"{t.dtype}{list(t.shape)}" for t in (got, mine))
        raise Refused(f"the sums '{name}' came as {form}, expected {wanted}")
    low, high = (float(end) for end in torch.aminmax(got)) if got.numel() else bounds
    if not (bounds[0] <= low and high <= bounds[1]):  # a NaN is no sum either
        raise Refused(f"the sums '{name}' are larger than any update that could be merged")


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
