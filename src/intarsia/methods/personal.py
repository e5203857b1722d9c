"""What methods share whose clients train a personal model with their copy of the shared one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, ClassVar

from pydantic import Field
from torch import Tensor

from intarsia.blocks import Block, Merge, Sums
from intarsia.core import SettingsError, part
from intarsia.methods.base import OWN, Method
from intarsia.training import LocalClient, Trained

PERSONAL = "personal"
"""The purpose of the tensors that make a client's personal model."""


@part
class Relaxed(Merge):
    """The present version and `beta` times its distance to the holders' mean (pFedMe, Dinh et al. 2020, line 11)."""

    name: ClassVar[str] = "relaxed"
    of_sums: ClassVar[bool] = True

    beta: Annotated[float, Field(gt=0)] = 1.0
    """How far the server goes from the present version to the mean (1: all the way)."""

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
class WithPersonalModel(Method):
    """The shared model travels; the personal one stays with its client, which evaluates both."""

    merge: Merge = Field(default_factory=Relaxed)

    def train_both(self, client: LocalClient, purpose: str) -> Trained:
        """Train both: the model ends as the shared one, `client.tensors[PERSONAL]` is the personal one."""
        raise SettingsError(
            f"{type(self).__name__} does not say how clients train: give it a method train_both"
        )

    def train(self, client: LocalClient) -> Trained:
        """Train both models; the shared one goes back."""
        return self.train_both(client, "batches")

    def own_model(self, client: LocalClient) -> Iterator[str]:
        """Put the personal model in the place of the shared one; who has none yet trains it."""
        yield "before"
        if PERSONAL not in client.tensors:
            self.train_both(client, PERSONAL)
        client.model.load_state_dict(client.tensors[PERSONAL], strict=False)
        yield OWN
