"""The fold of an exchange whose updates come under masks: whole numbers, added up modulo 2^64."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from intarsia.blocks import Address, Block, Fold, Layout, Merge, Sums
from intarsia.blocks.fold import check_numbers, check_planned
from intarsia.blocks.merge import Holder
from intarsia.core import Refused

COUNTER = "num_batches_tracked"
"""Ends the names of integer buffers that count steps: these follow from the sample counts, and travel openly."""


class MaskedFold(Fold):
    """Adds up what clients masked; what it is, nobody can see before the masks are taken off."""

    def add(
        self,
        blocks: Mapping[Address, Block],
        expected: Mapping[Address, Layout],
        samples: int,
        values: Mapping[str, object],
    ) -> None:
        """Check the form of one client's masked numbers and add them."""
        check_planned(blocks, expected, "blocks returned and blocks planned")
        for address, block in blocks.items():
            self._check_form(address, block)
        scalars = self.merge.scalars(samples, values) if blocks else []
        for address, block in blocks.items():
            self._of(address).absorb(block.tensors, samples, scalars)

    def check_sums(
        self, header: Mapping[str, object], tensors: Block, holders: Mapping[Address, Sequence[Holder]]
    ) -> None:
        """Refuse masked sums made elsewhere that do not have the form of these holders'."""
        check_planned(header, holders, "sums that came and sums that were planned")
        for address, own in holders.items():
            scalars = [number for holder in own for number in self.merge.scalars(*holder)]
            check_numbers(header[str(address)], sum(samples for samples, _ in own), scalars, address)
            start = f"{address}/"
            mine = {n.removeprefix(start): t for n, t in tensors.tensors.items() if n.startswith(start)}
            self._check_form(address, Block(mine))

    def _of(self, address: Address) -> Sums:
        if address not in self._sums:
            self._sums[address] = masked_sums(self.merge, self.present[address], self.planned[address])
        return self._sums[address]

    def _check_form(self, address: Address, block: Block) -> None:
        form = {name: (tensor.shape, tensor.dtype) for name, tensor in block.tensors.items()}
        mine = {name: (tensor.shape, tensor.dtype) for name, tensor in self._of(address).tensors.items()}
        if form != mine:
            odd = min(n for n in form.keys() | mine.keys() if form.get(n) != mine.get(n))
            raise Refused(
                f"masked numbers of '{odd}' came as {form.get(odd)}, expected {mine.get(odd)}",
                block=address.block,
            )


def masked_sums(merge: Merge, present: Block, planned: int) -> Sums:
    """Start the sums of an address, all of them whole numbers."""
    sums = merge.open(present, planned)
    tensors = {n: t.to(torch.int64) if n in sums.grids else t for n, t in sums.tensors.items()}
    return Sums(tensors, sums.grids, planned)
