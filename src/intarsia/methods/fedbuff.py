"""Buffered asynchronous averaging: the server does not wait for slow clients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from intarsia.blocks import Block, Merge, Sums
from intarsia.blocks.merge import Stale
from intarsia.core import part
from intarsia.methods.base import Method


@part
class Buffered(Merge):
    """Changes against the version that each client received, the less the older it is; then a step of the server.

    next = present + lr / K * sum of (1 + s)^-exponent * change, over the K buffered updates of an address, each of
    which went on from a version that was replaced s times since. Statistics (BatchNorm) are a mean of values, with the
    same weights: added up as changes, a variance could become negative. Integer buffers: the maximum.
    """

    name: ClassVar[str] = "buffered"

    lr: Annotated[float, Field(gt=0)] = 1.0
    """The server's learning rate."""
    exponent: Annotated[float, Field(ge=0)] = 0.5
    """How fast an update counts less with its staleness s: (1 + s)^-exponent."""

    def weight(self, staleness: int) -> float:
        """Return what an update of this staleness counts."""
        return float((1 + staleness) ** -self.exponent)

    def finish(self, sums: Sums, present: Block) -> Block:
        """Return the next version where all updates are against the present one."""
        return self.flush(present, [Stale(0, present, sums)])

    def flush(self, present: Block, parts: Sequence[Stale]) -> Block:
        """Return the next version from the sums of changes against this and older versions."""
        came = [part for part in parts if part.sums.samples]
        if not came:
            return present
        return Block(
            {n: self._next(n, t, present, came) for n, t in present.tensors.items()}, present.buffers
        )

    def _next(self, name: str, now: Tensor, present: Block, parts: Sequence[Stale]) -> Tensor:
        if name not in parts[0].sums.grids:
            return torch.stack([part.sums.tensors[name] for part in parts]).amax(0)
        weights = [self.weight(part.staleness) * part.sums.samples for part in parts]
        if name in present.buffers:
            values = [part.sums.moved(name, part.version.tensors[name]).double() for part in parts]
            return _weighted(values, weights).div_(sum(weights)).to(now.dtype)
        changes = [_mean_change(name, part.sums) for part in parts]
        count = sum(part.sums.samples for part in parts)
        return now.double().add_(_weighted(changes, weights), alpha=self.lr / count).to(now.dtype)


def _mean_change(name: str, sums: Sums) -> Tensor:
    return sums.tensors[name].double() * (sums.grids[name].step / (sums.samples / sums.planned))


def _weighted(values: Sequence[Tensor], weights: Sequence[float]) -> Tensor:
    total = torch.zeros_like(values[0])
    for value, weight in zip(values, weights, strict=True):
        total.add_(value, alpha=weight)
    return total


@part
class FedBuff(Method):
    """Clients train side by side from the version that they got; every K answers become the next one.

    Nguyen et al. 2022, "Federated learning with buffered asynchronous aggregation", Algorithm 1, with updates scaled
    by 1 / sqrt(1 + staleness). A round is one buffer: the server takes the first `buffer` answers that come in, in
    virtual time, and asks another client whenever one has answered or was lost; `sampling` says how many train at the
    same time. It works with every sharing whose groups are given: an address is merged from those of the buffer that
    hold it, and is as stale as it was replaced itself. Deviations: time is a fleet's clock (without a `fleet`, all
    devices are alike); a client is in a buffer at most once; no more are buffered than there are clients; without
    secure aggregation or noise.
    """

    name: ClassVar[str] = "fedbuff"
    title: ClassVar[str] = "FedBuff"

    merge: Merge = Field(default_factory=Buffered)
    buffer: Annotated[int, Field(ge=1)] = 10
    """How many answers the server waits for before it makes the next version (K)."""

    @property
    def flushes_after(self) -> int:
        """After how many answers the server goes on."""
        return self.buffer
