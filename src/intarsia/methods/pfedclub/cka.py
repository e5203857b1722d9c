"""How alike blocks are: linear centred kernel alignment of what goes into them and what comes out."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from intarsia.core import DataError, chance
from intarsia.methods.pfedclub.decompose import Chain, Chains, Ref, in_eval, refs

SAMPLES = 512
"""Public samples that are enough to compare blocks by."""
BATCH = 128
NOISE = 1e-6
"""A value that varies by less than this share of its size is the rounding of one that does not."""

Matrix = NDArray[np.float64]


@dataclass(frozen=True)
class Similarity:
    """How alike every two blocks are, from 0 to 2; `values[i, j]` is for `blocks[i]` and `blocks[j]`."""

    blocks: tuple[Ref, ...]
    values: Matrix

    def between(self, one: Ref, other: Ref) -> float:
        """Return how alike two blocks are."""
        return float(self.values[self.blocks.index(one), self.blocks.index(other)])


def similarity(chains: Chains, x: Tensor) -> Similarity:
    """Compare all blocks of these models on the same samples (Wang et al. 2024, eq. 1)."""
    return compare(chains, {key: block_features(chain, x) for key, chain in chains.items()})


def compare(chains: Chains, found: Mapping[str, Sequence[Tensor]]) -> Similarity:
    """Compare all blocks of these models by their `block_features` for the same samples.

    The similarity of two blocks is the alignment of their inputs plus that of their outputs. A block's output is
    the next one's input, so each is looked at once, and one multiplication compares them all.
    """
    features: list[Tensor] = []
    entries: list[int] = []
    exits: list[int] = []
    for key, chain in chains.items():
        first = len(features)
        features += found[key]
        entries += range(first, first + len(chain))
        exits += range(first + 1, first + 1 + len(chain))
    aligned = linear_cka(features)
    values = np.add(aligned[np.ix_(entries, entries)], aligned[np.ix_(exits, exits)])
    return Similarity(refs(chains), values)


def drawn(count: int, most: int, seed: int, purpose: str) -> Tensor:
    """Return at most so many of the row numbers below `count`, in order; which ones depends on seed and purpose."""
    if count <= most:
        return torch.arange(count)
    return torch.randperm(count, generator=chance.generator(seed, purpose))[:most].sort().values


@torch.no_grad()
def block_features(chain: Chain, x: Tensor) -> list[Tensor]:
    """Return what goes into a chain and what each block gives, one row a sample; maps are averaged to a point."""
    pieces: list[list[Tensor]] = [[] for _ in range(len(chain) + 1)]
    with in_eval(*(block.module for block in chain)):
        for start in range(0, len(x), BATCH):
            values = x[start : start + BATCH]
            pieces[0].append(_pooled(values))
            for place, block in enumerate(chain, 1):
                values = block.module(values.clone())  # it may work in place
                pieces[place].append(_pooled(values))
    return [torch.cat(piece) for piece in pieces]


def linear_cka(features: Sequence[Tensor]) -> Matrix:
    """Return the linear CKA of every two of these features (samples x values), all in one multiplication.

    ||Y'X||^2 / (||X'X|| ||Y'Y||) for centred X and Y is the cosine between their Gram matrices XX' and YY'. So each
    block needs one Gram matrix, of which half will do as it is symmetric, scaled to length 1. Features that do
    not vary align with nothing: 0.
    """
    count = _samples(features)
    rows, columns = torch.triu_indices(count, count)
    weights = torch.where(rows == columns, 1.0, math.sqrt(2.0)).to(torch.float64)
    halves = torch.empty(len(features), len(rows), dtype=torch.float64)
    for place, x in enumerate(features):
        halves[place] = _gram(x)[rows, columns]
    halves *= weights
    lengths = halves.norm(dim=1, keepdim=True)
    halves /= torch.where(lengths > 0, lengths, 1.0)
    return (halves @ halves.T).clamp(0.0, 1.0).numpy()


def _gram(x: Tensor) -> Tensor:
    """Return the products of every two centred samples, at a scale where squares neither vanish nor overflow."""
    x = x.detach().cpu().double()
    if not torch.isfinite(x).all():
        raise DataError("a block gives values that are not finite, so it cannot be compared with others")
    centred = x - x.mean(0)
    centred[:, centred.abs().amax(0) <= NOISE * x.abs().amax(0)] = 0.0
    size = centred.abs().max()
    centred = centred / size if size > 0 else centred
    return centred @ centred.T


def _samples(features: Sequence[Tensor]) -> int:
    counts = {len(x) for x in features}
    if len(counts) != 1 or min(counts) < 2 or any(x.dim() != 2 for x in features):
        raise DataError(
            "CKA needs features of the same samples, at least two, as matrices (samples, values); "
            f"got shapes {[list(x.shape) for x in features]}"
        )
    return counts.pop()


def _pooled(values: Tensor) -> Tensor:
    return values.mean(dim=(2, 3)) if values.dim() == 4 else values
