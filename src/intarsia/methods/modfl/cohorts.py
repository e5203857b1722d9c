"""Finding cohorts: clients whose updates point the same way, or whose networks are alike."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field
from torch import nn

from intarsia.blocks import ALL, Block, Update
from intarsia.core import chance, part, warn
from intarsia.data import ClientInfo
from intarsia.methods.base import Replies
from intarsia.methods.server import Server
from intarsia.models import parts_of

Vectors = NDArray[np.float64]
Algorithm = Literal["agglomerative", "kmeans"]
MOST = 20
"""More cohorts than this are not tried where their number is not given."""
DIRECTIONS, FOUND, SETTLED = "directions", "cohorts found", "cohorts settled"
"""Where the server keeps how clients changed a block, the round of the last search, and whether it was the last."""


@part
class CohortSearch:
    """How and when cohorts are found."""

    number: Annotated[int, Field(ge=0)] = 0
    """How many cohorts to find (0: the silhouette chooses; where devices differ, compare `last_bias` then, or
    each device's part of a cohort passes for a cohort of its own)."""
    algorithm: Algorithm = "agglomerative"
    """How cohorts are found: agglomerative clustering, or k-means."""
    compare: Literal["last_layer", "last_bias", "module"] = "last_layer"
    """What is compared: the update of the module's last layer; of its bias alone, which depends least on the
    device but sees only how often labels occur; or of the whole module, which tells little after round 1."""
    after: Annotated[int, Field(ge=1)] = 1
    """The first round after which cohorts are found; not before every client that trains has taken part."""
    every: Annotated[int, Field(ge=0)] = 0
    """Find them again every so many rounds, until nothing changes (0: once)."""
    settle: bool = True
    """Whether the search ends when it changes nothing; with `every = 1` and without it cohorts are found in each round,
    which is Algorithm 1 as printed."""

    def find_cohorts(self, block: str, server: Server, replies: Replies) -> None:
        """Note how clients changed a block; when it is time, let those share it who changed it alike."""
        if server.state.get(SETTLED):
            return
        directions = server.state.setdefault(DIRECTIONS, {})
        directions |= {client: self._direction(block, server, client, replies[client]) for client in replies}
        due = server.state[FOUND] + self.every if FOUND in server.state else self.after
        if directions.keys() != set(server.residents) or server.round < due:
            return
        before = {client: server.address(block, client).group for client in server.residents}
        groups = self._groups(server, before)
        if len(set(groups.values())) == 1 < len(groups):
            warn(f"round {server.round}: one cohort was found, so that the {block} module is everyone's")
        server.state |= {
            DIRECTIONS: {},
            FOUND: server.round,
            SETTLED: self.every == 0 or (self.settle and groups == before),
        }
        modules = {
            group: _module(block, server, members, replies)
            for group, members in sorted(_members(groups).items())
        }
        server.regroup(block, groups | _of_newcomers(server, groups), modules)

    def _groups(self, server: Server, before: Mapping[str, str]) -> dict[str, str]:
        """Return the cohorts, found among the clients of each task; old names stay where members do."""
        groups: dict[str, str] = {}
        for task, names in _members({name: server.clients[name].task for name in before}).items():
            key = chance.key(server.seed, "cohorts", server.round, *([task] if task else []))
            vectors = np.asarray([server.state[DIRECTIONS][name] for name in names])
            found = dict(zip(names, cluster(vectors, self.number, self.algorithm, key), strict=True))
            info = server.clients[names[0]]
            former = {name: before[name] for name in names if before[name] != within_task(info, ALL)}
            fresh = [within_task(info, f"cohort-{i}") for i in range(2 * len(names))]
            groups |= keep_names(former, found, fresh)
        return groups

    def _direction(self, block: str, server: Server, client: str, update: Update) -> list[float]:
        """Return how a client changed the block, as plain numbers."""
        address = server.address(block, client)
        old, new = server.pool.sent.get(address), update.blocks[address]
        names = self._compared(server.model_of(client).module, new)
        changes = [(new.tensors[n].double() - old.tensors[n].double()).flatten() for n in names]
        return [float(x) for change in changes for x in change]

    def _compared(self, model: nn.Module, module: Block) -> list[str]:
        """Return the names of the parameters whose updates are compared."""
        weights = sorted(module.tensors.keys() - module.buffers)
        if self.compare == "module":
            return weights
        patterns = list(parts_of(model).values())[-1]
        last = [name for name in weights if any(fnmatchcase(name, pattern) for pattern in patterns)]
        biases = [name for name in last if module.tensors[name].dim() == 1]
        return biases if self.compare == "last_bias" and biases else last


def within_task(client: ClientInfo, cohort: str) -> str:
    """Return the name of a cohort among the clients of this client's task."""
    return f"{client.task}/{cohort}" if client.task else cohort


def _members(groups: Mapping[str, str]) -> dict[str, list[str]]:
    members: dict[str, list[str]] = {}
    for client, group in groups.items():
        members.setdefault(group, []).append(client)
    return members


def _module(block: str, server: Server, members: Sequence[str], replies: Replies) -> Block:
    """Return the module of a cohort: its members' updates, merged; or, if none took part, the one they had."""
    updates = {client: replies[client] for client in members if client in replies}
    return server.merged(block, updates) if updates else server.pool.get(server.address(block, members[0]))


def _of_newcomers(server: Server, groups: Mapping[str, str]) -> dict[str, str]:
    """Return the largest cohort of its task, by members, then by name, for each client that never trains."""
    placed = {}
    for client in sorted(server.clients.keys() - groups.keys()):
        task = server.clients[client].task
        sizes = Counter(group for c, group in groups.items() if server.clients[c].task == task)
        if sizes:
            placed[client] = min(sizes, key=lambda group: (-sizes[group], group))
    return placed


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
