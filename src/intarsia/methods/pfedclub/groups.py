"""Functional groups: blocks that do alike work, found from their similarity."""

from __future__ import annotations

import warnings

from intarsia.core import chance
from intarsia.methods.pfedclub.cka import Similarity
from intarsia.methods.pfedclub.decompose import Ref

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
