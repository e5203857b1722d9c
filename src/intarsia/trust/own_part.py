"""One client's part of the sums of an exchange: made by the client itself, and masked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor

from intarsia.blocks import Address, Block, Fold, Layout, Merge, Task, Update
from intarsia.blocks.plain import read_as
from intarsia.core import Refused
from intarsia.trust.secure_sums import MASKED, Masking, digest, to_text

if TYPE_CHECKING:
    from intarsia.trust.guard import Guard


@dataclass(frozen=True)
class OwnPart:
    """What a client's part is made with: the merge, and the blocks as they were sent."""

    merge: Merge
    sent: Mapping[Address, Block]
    layouts: Mapping[Address, Layout]
    made_of: str
    """All that decides what the client's update is: the same again gives the same update."""

    def masked(self, guard: Guard, task: Task, update: Update) -> dict[Address, Block]:
        """Return the update in whole steps of the grid, as a merge adds it, under masks; counters as they are."""
        steps = self._steps(task, update)
        summed = {a: {n: t for n, t in own.items() if self._is_summed(a, n)} for a, own in steps.items()}
        masked = guard.mask(
            task, {str(a): own for a, own in summed.items()}, to_text(digest("work", self.made_of))
        )
        return {a: Block({**own, **masked[str(a)]}) for a, own in steps.items()}

    def _steps(self, task: Task, update: Update) -> dict[Address, Mapping[str, Tensor]]:
        """Return the update as its merge adds it, by address; what would be refused is refused here."""
        asked = read_as(Masking, task.values[MASKED], "how to mask")
        planned = {address: asked.planned.get(str(address), 0) for address in self.sent}
        if not update.samples or asked.weight % update.samples or not all(planned.values()):
            raise Refused(f"{asked.weight} samples are to be counted, the client has {update.samples}")
        fold = Fold(self.merge, self.sent, planned)
        fold.add(update.blocks, self.layouts, asked.weight, update.values)
        _, tensors = fold.dump()
        return {
            a: {name: tensors.tensors[f"{a}/{name}"] for name in block.tensors}
            for a, block in self.sent.items()
        }

    def _is_summed(self, address: Address, name: str) -> bool:
        return self.sent[address].tensors[name].is_floating_point()
