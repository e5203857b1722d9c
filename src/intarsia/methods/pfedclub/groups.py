"""Functional groups: blocks that do alike work, found from their similarity."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray

from intarsia.core import SettingsError, chance
from intarsia.methods.pfedclub.cka import Matrix, Similarity
from intarsia.methods.pfedclub.decompose import Ref

Groups = dict[Ref, int]
"""The number of each block's group."""
Labels = NDArray[np.int64]

STARTS = 10
"""How often a grouping starts anew; the best result counts."""


def kmeans(values: Matrix, k: int, seed: int) -> Labels:
    """Group rows of a similarity matrix by K-means (k-means++, the best of ten starts)."""
    from sklearn.cluster import KMeans
    from sklearn.exceptions import ConvergenceWarning

    random_state = chance.key(seed, "kmeans") % 2**32
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # fewer different rows than groups
        found = KMeans(k, init="k-means++", n_init=STARTS, random_state=random_state).fit(values)
    return np.asarray(found.labels_, dtype=np.int64)


def group_blocks(similarity: Similarity, k: int, seed: int) -> Groups:
    """Put every block into one of at most k groups, none of them empty; fewer where fewer blocks differ.

    Groups are numbered in the order in which their first block appears.
    """
    count = len(similarity.blocks)
    if not 1 <= k <= count:
        raise SettingsError(f"{count} blocks cannot be put into {k} groups: choose 1 ... {count}")
    labels = kmeans(similarity.values, k, seed)
    order: dict[Any, int] = {}
    return {
        ref: order.setdefault(int(label), len(order))
        for ref, label in zip(similarity.blocks, labels, strict=True)
    }
