"""Merges that bear hostile updates: each takes all updates of an address at once, over its holders."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from intarsia.blocks import Address, Block, Merge
from intarsia.blocks.merge import Gathered
from intarsia.core import part
from intarsia.trust.stack import Stack

Share = Annotated[float, Field(ge=0, lt=0.5)]


@dataclass(frozen=True)
class Votes:
    """The updates of an address, and how many of them may be hostile."""

    stack: Stack
    hostile: int
    weights: Tensor
    """What each update counts in a mean."""


@part
class Robust(Merge):
    """The base of merges that bear hostile updates: clients count alike, whatever number of samples they claim.

    Statistics (BatchNorm) and counts are the coordinate median, since no distance between updates tells anything
    of them. An address with too few holders tolerates none: that is said before a run and while it runs.
    """

    name: ClassVar[str] = ""
    gathers: ClassVar[bool] = True
    spare: ClassVar[int] = 2
    """How many holders must be left when twice the hostile ones are taken away."""

    f: Share = 0.2
    """The share of an address's holders that may be hostile."""
    mixing: bool = False
    """Whether each update is first replaced by the mean of its nearest neighbours (Allouah et al. 2023, NNM)."""

    def tolerated(self, holders: int) -> int:
        """Return how many hostile ones among so many holders the merge is made for."""
        asked = math.ceil(self.f * holders - 1e-9)
        return max(0, min(asked, (holders - self.spare) // 2))

    def combine(self, present: Block, updates: Sequence[Gathered]) -> Block:
        """Return the present version and the change that the rule makes of all changes."""
        hostile = self.tolerated(len(updates))
        stack = Stack(present, [block for block, _ in updates])
        if self.mixing:
            stack = stack.mixed(nearest_means(stack.distances(), hostile))
        votes = Votes(stack, hostile, self.counted([samples for _, samples in updates]))
        changes = self.changes(votes)
        tensors = {
            name: _moved(now, changes[name]) if name in changes else stack.middle(name)
            for name, now in present.tensors.items()
        }
        return Block(tensors, present.buffers)

    def counted(self, samples: Sequence[int]) -> Tensor:
        """Return what each update counts in a mean."""
        return torch.ones(len(samples), dtype=torch.float64)

    def changes(self, votes: Votes) -> dict[str, Tensor]:
        """Return the change of every parameter, flat."""
        return {name: self.change(votes.stack.rows(name), votes) for name in votes.stack.names}

    def change(self, rows: Tensor, votes: Votes) -> Tensor:
        """Return the change of one parameter, of a row for each update."""
        raise NotImplementedError(f"merge '{self.name}' needs a rule")


@part
class Median(Robust):
    """The coordinate median over the holders of an address (Yin et al. 2018, Algorithm 1)."""

    name: ClassVar[str] = "median"

    def change(self, rows: Tensor, votes: Votes) -> Tensor:
        """Return the middle of every column; of an even number, the mean of both."""
        return middle(rows)


@part
class Averaging(Robust):
    """The base of robust merges that take a mean in the end."""

    name: ClassVar[str] = ""

    weighted: bool = False
    """Whether clients count by their samples where a mean is taken: by what they claim to have."""

    def counted(self, samples: Sequence[int]) -> Tensor:
        """Return ones, or what clients claim."""
        return torch.tensor(samples, dtype=torch.float64) if self.weighted else Robust.counted(self, samples)


@part
class Trimmed(Averaging):
    """The mean of every coordinate without its smallest and its largest values (Yin et al. 2018, Algorithm 1)."""

    name: ClassVar[str] = "trimmed"

    def change(self, rows: Tensor, votes: Votes) -> Tensor:
        """Leave out as many at both ends as may be hostile."""
        values, order = rows.sort(dim=0, stable=True)
        inner = slice(votes.hostile, len(rows) - votes.hostile)
        weights = votes.weights[order[inner]]
        return (values[inner] * weights).sum(0) / weights.sum(0)


@part
class Krum(Robust):
    """The one update that lies closest to its nearest neighbours (Blanchard et al. 2017)."""

    name: ClassVar[str] = "krum"
    spare: ClassVar[int] = 3

    def changes(self, votes: Votes) -> dict[str, Tensor]:
        """Return the change of the first by score."""
        best = int(krum_scores(votes.stack.distances(), votes.hostile).argsort(stable=True)[0])
        return {name: votes.stack.rows(name)[best] for name in votes.stack.names}


@part
class MultiKrum(Averaging):
    """The mean of all updates but as many as may be hostile, by Krum's scores (Blanchard et al. 2017)."""

    name: ClassVar[str] = "multi-krum"
    spare: ClassVar[int] = 3

    def changes(self, votes: Votes) -> dict[str, Tensor]:
        """Return the mean change of the best by score."""
        order = krum_scores(votes.stack.distances(), votes.hostile).argsort(stable=True)
        best = order[: len(order) - votes.hostile].sort().values
        weights = votes.weights[best] / votes.weights[best].sum()
        return {name: weights @ votes.stack.rows(name)[best] for name in votes.stack.names}


@part
class CentredClipping(Averaging):
    """The mean of changes, each no further than a radius from the centre (Karimireddy et al. 2021, Algorithm 2).

    The centre begins at the present version and moves to the mean, `iterations` times. With `radius` 0 it is, each
    time, the median distance of the holders from the centre.
    """

    name: ClassVar[str] = "centred-clipping"

    radius: Annotated[float, Field(ge=0)] = 0.0
    """How far a change may be from the centre (0: the median distance)."""
    iterations: Annotated[int, Field(ge=1)] = 3
    """How often the centre is moved."""

    def changes(self, votes: Votes) -> dict[str, Tensor]:
        """Move the centre, step by step."""
        stack = votes.stack
        share = (votes.weights / votes.weights.sum()).unsqueeze(1)
        centre = {name: torch.zeros_like(stack.rows(name)[0]) for name in stack.names}
        for _ in range(self.iterations):
            far = stack.distances_from(centre)
            radius = torch.tensor(self.radius, dtype=torch.float64) if self.radius else middle(far)
            scale = (radius / far.clamp(min=1e-300)).clamp(max=1.0).unsqueeze(1) * share
            centre = {n: own + ((stack.rows(n) - own) * scale).sum(0) for n, own in centre.items()}
        return centre


def few_holders(merge: Merge, holders: Mapping[Address, int]) -> str:
    """Return which addresses too few hold for a merge to bear a hostile one; what one client holds is its own."""
    if not isinstance(merge, Robust) or not merge.f:
        return ""
    shared = {a: n for a, n in sorted(holders.items()) if n > 1 and not a.private}
    few = [f"{a} has {n} holders" for a, n in shared.items() if not merge.tolerated(n)]
    more = f" and {len(few) - 3} more addresses" if len(few) > 3 else ""
    who = "; ".join(few[:3]) + more
    return f"merge '{merge.name}': {who}: such an address tolerates no hostile client" if few else ""


def nearest_means(distances: Tensor, hostile: int) -> Tensor:
    """Return, row by row, what each update counts in the mean of the `n - hostile` nearest to one of them."""
    count = len(distances)
    nearest = distances.argsort(dim=1, stable=True)[:, : count - hostile]
    return torch.zeros_like(distances).scatter_(1, nearest, 1.0 / (count - hostile))


def krum_scores(distances: Tensor, hostile: int) -> Tensor:
    """Return the sum of squared distances of each update to its `n - hostile - 1` nearest neighbours.

    As byzfl counts them; Blanchard et al. 2017 take one fewer.
    """
    ordered = distances.square().sort(dim=1).values
    return ordered[:, 1 : max(2, len(distances) - hostile)].sum(1)


def middle(rows: Tensor) -> Tensor:
    """Return the median along the first dimension; of an even number, the mean of both in the middle."""
    ordered = rows.sort(dim=0).values
    return (ordered[(len(rows) - 1) // 2] + ordered[len(rows) // 2]) / 2


def _moved(now: Tensor, change: Tensor) -> Tensor:
    return now.double().add(change.view(now.shape)).to(now.dtype)
