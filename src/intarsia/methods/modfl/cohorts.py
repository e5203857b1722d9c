"""Finding cohorts: clients whose updates point the same way, or whose networks are alike."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Vectors = NDArray[np.float64]
Algorithm = Literal["agglomerative", "kmeans"]
MOST = 20


def cluster(vectors: Vectors, number: int, algorithm: Algorithm, seed: int) -> list[int]:
    """Return a cluster for each row by cosine distance; with `number` 0 the silhouette chooses how many."""
    length = np.linalg.norm(vectors, axis=1, keepdims=True)
    # An update of nothing points nowhere: all such rows get one and the same direction.
    rows = np.where(length > 0, vectors / np.maximum(length, 1e-12), 1 / np.sqrt(vectors.shape[1]))
    if number:
        return _clusters(rows, min(number, len(rows)), algorithm, seed)
    return _best(rows, algorithm, seed)


def _clusters(rows: Vectors, number: int, algorithm: Algorithm, seed: int) -> list[int]:
    from sklearn.cluster import AgglomerativeClustering, KMeans

    if number <= 1 or len(rows) < 2:
        return [0] * len(rows)
    if algorithm == "kmeans":
        found = KMeans(number, n_init=10, random_state=seed % 2**32).fit_predict(rows)
    else:
        found = AgglomerativeClustering(number, metric="cosine", linkage="average").fit_predict(rows)
    return [int(c) for c in found]


def _best(rows: Vectors, algorithm: Algorithm, seed: int) -> list[int]:
    from sklearn.metrics import silhouette_score

    best, score = [0] * len(rows), 0.0
    for number in range(2, min(MOST, len(rows) - 1) + 1):
        found = _clusters(rows, number, algorithm, seed)
        if len(set(found)) > 1 and (now := silhouette_score(rows, found, metric="cosine")) > score:
            best, score = found, now
    return best


def group_decisions(gates: Sequence[Sequence[float]], number: int) -> list[int]:
    """Return a group for each row of gates: average linkage by Hamming distance.

    Equal rows are never apart, so there may be fewer groups. The order of the rows does not matter.
    """
    from sklearn.cluster import AgglomerativeClustering

    rows = np.asarray(gates, float)
    number = min(number, len(np.unique(rows, axis=0)))
    if number <= 1:
        return [0] * len(rows)
    order = np.lexsort(rows.T)
    tree = AgglomerativeClustering(number, metric="hamming", linkage="average")
    found = dict(zip(order.tolist(), tree.fit_predict(rows[order]).tolist(), strict=True))
    return [found[row] for row in range(len(rows))]


def adjusted_rand(given: Sequence[str | int], found: Sequence[str | int]) -> float:
    """Return how well groups match those given (adjusted Rand index): 1 the same, 0 as by chance."""
    from sklearn.metrics import adjusted_rand_score

    return float(adjusted_rand_score(given, found))


def keep_names(before: Mapping[str, str], clusters: Mapping[str, int], new: Sequence[str]) -> dict[str, str]:
    """Name the clusters: each keeps the name of the former group that it overlaps most, else a new one."""
    overlaps = Counter((number, before[client]) for client, number in clusters.items() if client in before)
    names: dict[int, str] = {}
    for (number, group), _ in sorted(overlaps.items(), key=lambda item: (-item[1], item[0])):
        if number not in names and group not in names.values():
            names[number] = group
    fresh = iter(name for name in new if name not in names.values())
    for number in sorted(set(clusters.values())):
        if number not in names:
            names[number] = next(fresh)
    return {client: names[number] for client, number in clusters.items()}
