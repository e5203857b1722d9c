"""How alike blocks are (linear centred kernel alignment of what goes in and comes out), and groups of alike ones."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from intarsia.core import DataError, chance
from intarsia.methods.pfedclub.decompose import Chain, Chains, Ref

BATCH = 128
NOISE = 1e-6
"""A value that varies by less than this share of its size is the rounding of one that does not."""

Matrix = NDArray[np.float64]


class Similarity(NamedTuple):
    """How alike every two blocks are, from 0 to 2; `values[i, j]` is for `blocks[i]` and `blocks[j]`."""

    blocks: tuple[Ref, ...]
    values: Matrix


def compare(chains: Chains, features: Mapping[str, Sequence[Tensor]]) -> Similarity:
    """Compare all blocks of these models by their `block_features` for the same samples (Wang et al. 2024, eq. 1).

    The similarity of two blocks is the alignment of their inputs plus that of their outputs. A block's output is
    the next one's input, so each is looked at once, and one multiplication compares them all.
    """
    aligned = linear_cka([values for key in chains for values in features[key]])
    blocks = tuple(Ref(key, block.index) for key, chain in chains.items() for block in chain)
    before = {key: number for number, key in enumerate(chains)}  # each model has one more value than blocks
    entries = [place + before[ref.model] for place, ref in enumerate(blocks)]
    exits = [entry + 1 for entry in entries]
    return Similarity(blocks, aligned[np.ix_(entries, entries)] + aligned[np.ix_(exits, exits)])


@torch.no_grad()
def block_features(chain: Chain, x: Tensor) -> list[Tensor]:
    """Return what goes into a chain and what each block gives, one row a sample; maps are averaged to a point."""
    pieces: list[list[Tensor]] = [[] for _ in range(len(chain) + 1)]
    for values in torch.split(x, BATCH):
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
    rows, columns = torch.triu_indices(len(features[0]), len(features[0]))
    weights = torch.where(rows == columns, 1.0, math.sqrt(2.0)).to(torch.float64)
    halves = torch.empty(len(features), len(rows), dtype=torch.float64)
    for place, x in enumerate(features):
        halves[place] = _gram(x)[rows, columns]
    halves *= weights
    functional.normalize(halves, dim=1, out=halves)
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


def _pooled(values: Tensor) -> Tensor:
    return values.mean(dim=(2, 3)) if values.dim() == 4 else values


FunctionalGroups = dict[Ref, int]
"""The number of each block's group."""


def group_blocks(similarity: Similarity, k: int, seed: int) -> FunctionalGroups:
    """Put every block into one of at most k groups, none of them empty; fewer where fewer blocks differ.

    K-means of the rows of the similarity matrix: k-means++, the best of ten starts. Groups are numbered in the order
    in which their first block appears.
    """
    from sklearn.cluster import KMeans
    from sklearn.exceptions import ConvergenceWarning

    key, k = chance.key(seed, "kmeans") % 2**32, min(k, len(similarity.blocks))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # fewer different rows than groups
        labels = KMeans(k, init="k-means++", n_init=10, random_state=key).fit_predict(similarity.values)
    order: dict[int, int] = {}
    return {
        ref: order.setdefault(int(label), len(order))
        for ref, label in zip(similarity.blocks, labels, strict=True)
    }
