"""Clusters of clients that split in two where their updates disagree."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field

from intarsia.blocks import Block
from intarsia.core import SettingsError, part
from intarsia.methods.base import Method, Replies, Sharing
from intarsia.methods.modfl.cohorts import keep_names
from intarsia.methods.server import Server

MODEL = "model"
Matrix = NDArray[np.float64]


@part
class Clusters(Sharing):
    """`model` with everyone at first; a cluster splits in two where it stands still but its members do not.

    A cluster is judged in a round in which all of its members have answered: similarities mean something
    only between updates of one and the same model. Where rounds sample clients, that is a rare event for
    a large cluster, and an everyday one for a small. A client that never trains (`sampling.newcomers`) stays
    with the group it began in, whose name the larger half keeps at every split.
    """

    name: ClassVar[str] = "clustered_fl"
    needs: ClassVar[frozenset[str]] = frozenset({MODEL})

    eps1: Annotated[float, Field(gt=0)] = 0.4
    """A cluster stands still when the norm of its members' mean update is smaller. It depends on the model and
    on the learning rate; the paper's advice is a tenth of the largest norm in the first rounds."""
    eps2: Annotated[float, Field(gt=0)] = 1.6
    """Its members do not when the largest norm of a single update is larger; one to ten times `eps1`."""
    gamma_max: Annotated[float, Field(ge=0, le=1)] = 0.38
    """How far an update may be off its distribution's, as a share of that one's norm (0: not at all). Two clients
    of one distribution then have a cosine of at least 1 - 2 gamma_max^2; a split is made if all pairs across it are
    below, that is, if gamma_max < sqrt((1 - cosine) / 2). The default is ours: cosines below 0.71."""
    after: Annotated[int, Field(ge=1)] = 1
    """The first round after which clusters are split."""

    @property
    def sees_updates(self) -> bool:
        """Whether the server must see single updates: it compares them."""
        return True

    def regroup(self, server: Server, replies: Replies) -> None:
        """Split each cluster that should be, once; both halves go on from the cluster's block."""
        if server.round < self.after:
            return
        clusters: dict[str, list[str]] = {}
        for client in server.residents:
            clusters.setdefault(server.address(MODEL, client).group, []).append(client)
        for group, members in clusters.items():
            if len(members) > 1 and replies.keys() >= set(members):
                self._judge(server, group, members, replies)

    def _judge(self, server: Server, group: str, members: Sequence[str], replies: Replies) -> None:
        """Split one cluster if the mean update is small, a single one large, and its halves differ."""
        address = server.address(MODEL, members[0])
        products = inner_products(
            server.pool.sent.get(address), [replies[m].blocks[address] for m in members]
        )
        weights = np.asarray([server.pool.sent.weights[m] for m in members], dtype=np.float64)
        share = weights / weights.sum()
        norms = np.sqrt(np.diag(products))
        if math.sqrt(max(0.0, share @ products @ share)) >= self.eps1 or norms.max() <= self.eps2:
            return
        similarity = products / np.maximum(np.outer(norms, norms), 1e-300)
        halves, across = bipartition(similarity)
        if across < 1 - 2 * self.gamma_max**2:
            self._split(server, group, dict(zip(members, halves, strict=True)))

    def _split(self, server: Server, group: str, halves: Mapping[str, int]) -> None:
        """Give the smaller half a name of its own; the larger keeps the cluster's."""
        taken = {server.address(MODEL, client).group for client in server.clients}
        origin = server.addresses.named[next(iter(halves))][MODEL].group
        names = (f"{origin}/{number}" for number in range(2, len(taken) + 3))
        fresh = next(name for name in names if name not in taken)
        groups = keep_names(dict.fromkeys(halves, group), halves, [fresh])
        server.regroup(MODEL, groups, {fresh: server.pool.get(server.address(MODEL, next(iter(halves))))})


def inner_products(present: Block, updates: Sequence[Block]) -> Matrix:
    """Return the inner products of all pairs of changes; buffers are no part of them."""
    if any(update.layout != present.layout for update in updates):
        raise SettingsError("clustered_fl compares whole updates: it cannot be used with slices of a model")
    total = torch.zeros(len(updates), len(updates), dtype=torch.float64)
    for name in sorted(present.tensors.keys() - present.buffers):
        start = present.tensors[name].double().flatten()
        changes = torch.stack([update.tensors[name].double().flatten() - start for update in updates])
        total += changes @ changes.T
    return np.asarray(total.numpy(), dtype=np.float64)


def bipartition(similarity: Matrix) -> tuple[list[int], float]:
    """Return the half (0 or 1) of each row, and the largest similarity across: the smallest there can be.

    Single linkage down to two clusters is exact. The pairs that join form a maximum spanning tree, whose last edge,
    between the two that are left, is its smallest. Any bipartition cuts an edge of the tree, so it has a similarity
    across of at least that one.
    """
    from sklearn.cluster import AgglomerativeClustering

    found = AgglomerativeClustering(2, metric="precomputed", linkage="single").fit_predict(-similarity)
    apart = found[:, None] != found
    return (found != found[0]).astype(int).tolist(), float(similarity[np.triu(apart)].max())


@part
class ClusteredFL(Method):
    """FedAvg within clusters, which split in two when their members' updates disagree.

    Sattler, Mueller and Samek 2020, "Clustered federated learning: model-agnostic distributed multi-task
    optimization under privacy constraints": Algorithm 1 (optimal bipartition by the cosine similarity of updates)
    and Algorithm 2 (recursive splitting). A cluster that has come to a stationary point, |mean update| <
    eps1, at which some member still wants to move, max |update| > eps2, is split so that the largest
    similarity across is as small as possible, unless noise within one distribution, gamma_max, could explain that
    (Algorithm 2: gamma_max < sqrt((1 - similarity) / 2)). Deviations: all clusters train in every round and may
    split in any, where the paper trains each to its stationary point, one after the other; a cluster is
    judged only by a round in which all of its members took part; both halves of a split go on from the mean of all
    its members, so that they part one round later than in the authors' code, which takes the mean of each half in the
    round of the split; the paper's cache of updates for clients that come late is left out: they share with their
    group of origin.
    """

    name: ClassVar[str] = "clustered_fl"
    title: ClassVar[str] = "Clustered FL"

    sharing: Sharing = Field(default_factory=Clusters)
