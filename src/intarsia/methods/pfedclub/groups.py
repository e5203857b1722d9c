"""Functional groups: blocks that do alike work, found from their similarity."""

from __future__ import annotations

import warnings
from collections.abc import Callable
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


def kmedoids(values: Matrix, k: int, seed: int) -> Labels:
    """Group blocks around k of them, so that the similarity to the own one is largest (the best of ten starts)."""
    draw = chance.numpy_generator(seed, "kmedoids")
    distance = 2.0 - values
    np.fill_diagonal(distance, 0.0)
    starts = [_settle(distance, _spread(distance, k, draw)) for _ in range(STARTS)]
    return min(starts, key=lambda start: start[0])[1]


GROUPINGS: dict[str, Callable[[Matrix, int, int], Labels]] = {"kmeans": kmeans, "kmedoids": kmedoids}


def group_blocks(similarity: Similarity, k: int, seed: int, by: str = "kmeans") -> Groups:
    """Put every block into one of at most k groups, none of them empty; fewer where fewer blocks differ.

    Groups are numbered in the order in which their first block appears.
    """
    count = len(similarity.blocks)
    if by not in GROUPINGS:
        raise SettingsError(f"there is no grouping '{by}'; there are: {', '.join(GROUPINGS)}")
    if not 1 <= k <= count:
        raise SettingsError(f"{count} blocks cannot be put into {k} groups: choose 1 ... {count}")
    labels = GROUPINGS[by](similarity.values, k, seed)
    order: dict[Any, int] = {}
    return {
        ref: order.setdefault(int(label), len(order))
        for ref, label in zip(similarity.blocks, labels, strict=True)
    }


def _spread(distance: Matrix, k: int, draw: np.random.Generator) -> Labels:
    """Draw k different blocks, far ones more likely (as k-means++ does)."""
    chosen = [int(draw.integers(len(distance)))]
    while len(chosen) < k:
        weights = distance[:, chosen].min(axis=1).clip(0.0) ** 2
        weights[chosen] = 0.0
        if weights.sum() == 0:
            weights = np.ones(len(distance))
            weights[chosen] = 0.0
        chosen.append(int(draw.choice(len(distance), p=weights / weights.sum())))
    return np.array(chosen, dtype=np.int64)


def _settle(distance: Matrix, medoids: Labels) -> tuple[float, Labels]:
    """Move medoids to the middle of their groups until none moves; return the cost and each block's group."""
    while True:
        labels = _nearest(distance, medoids)
        moved = np.array([_middle(distance, np.flatnonzero(labels == g)) for g in range(len(medoids))])
        if _cost(distance, moved, labels) >= _cost(distance, medoids, labels):
            return _cost(distance, medoids, labels), labels
        medoids = moved


def _nearest(distance: Matrix, medoids: Labels) -> Labels:
    labels: Labels = distance[:, medoids].argmin(axis=1)
    labels[medoids] = np.arange(len(medoids))
    return labels


def _middle(distance: Matrix, members: Labels) -> int:
    return int(members[distance[np.ix_(members, members)].sum(axis=1).argmin()])


def _cost(distance: Matrix, medoids: Labels, labels: Labels) -> float:
    return float(distance[np.arange(len(labels)), medoids[labels]].sum())
