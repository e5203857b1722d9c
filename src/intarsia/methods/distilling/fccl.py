"""Models of any kind whose scores on public data are made to correlate, class by class."""

from __future__ import annotations

import copy
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from intarsia.core import part
from intarsia.data import Examples
from intarsia.methods.distilling.common import DIGEST, Approach, Conferring, Count, Taught, ask
from intarsia.training import LocalClient, Trained

Weight = Annotated[float, Field(ge=0)]
ALONE = "alone"
"""The purpose of the tensors of the model that a client trained before it met others."""
FLAT = 1e-6
"""Scores that differ by less over a batch are constant."""


@part
class FCCL(Conferring):
    """Learn from others on unlabelled public data, and do not forget it, nor oneself, on one's own.

    Huang, Ye and Du 2022, "Learn from others and be yourself in heterogeneous federated learning". Collaborative
    updating: with c_uv the correlation, over public samples, of the client's score for class u with the mean of all
    clients' scores for class v, the client minimises sum_u (c_uu - 1)^2 + `off_diagonal` sum_{u != v} (c_uv + 1)^2.
    Local updating: cross entropy on the own data + `inter` KL(before || model) + `intra` KL(alone || model), where
    `before` is the client's model as its last round left it, before this round's collaborative updating, and `alone`
    the one that it trained on its own data before its first round; in that round both are the same. Ours: scores
    travel once a round, for `subset` public samples; `alone` takes `pretraining` epochs; `inter` and `intra` are 1
    unless they are set; teachers are in evaluation mode, temperatures are 1.
    """

    name: ClassVar[str] = "fccl"
    title: ClassVar[str] = "FCCL"

    digest_batch: Annotated[int, Field(ge=2)] = 256
    """Public samples a batch: correlations are over these."""
    off_diagonal: Weight = 0.0051
    """Weight of what different classes have in common."""
    inter: Weight = 1.0
    """Weight of what was learned with others, up to the last round."""
    intra: Weight = 1.0
    """Weight of what was learned alone."""
    pretraining: Count = 5
    """Epochs on the own data before a client's first round."""

    def begin(self, client: LocalClient) -> None:
        """Train alone, once."""
        if ALONE not in client.tensors:
            client.train(self.objective, epochs=self.pretraining, purpose=ALONE)
            client.tensors[ALONE] = client.snapshot()

    def digest(self, client: LocalClient, samples: Examples) -> Trained:
        """Update together with the others, then on the own data with both teachers."""
        before = copy.deepcopy(client.model).eval()
        alone = copy.deepcopy(before)
        alone.load_state_dict(client.tensors[ALONE], strict=False)
        towards, size = Approach(self.dissent), self.digest_batch
        client.train_on(samples, towards, epochs=self.digest_epochs, size=size, purpose=DIGEST)
        teachers = (
            (self.inter, lambda batch: ask(before, batch.x)),
            (self.intra, lambda batch: ask(alone, batch.x)),
        )
        return client.train(Taught(self.objective, teachers))

    def dissent(self, scores: Tensor, consensus: Tensor) -> Tensor:
        """Return how far the scores' correlations with the consensus are from 1 in the same class, else from -1."""
        c = correlation(scores, consensus)
        same = c.diagonal()
        off = (c + 1).square().sum() - (same + 1).square().sum()
        return (same - 1).square().sum() + self.off_diagonal * off


def correlation(one: Tensor, other: Tensor) -> Tensor:
    """Return the correlation of every column of one table with every column of another."""
    return _standard(one).T @ _standard(other)


def _standard(table: Tensor) -> Tensor:
    """Return the columns with mean 0 and length 1; one that is constant is 0, and nothing pulls at it."""
    centred = table - table.mean(0)
    length = torch.linalg.vector_norm(centred, dim=0)
    standard: Tensor = centred * (length > FLAT) / length.clamp_min(FLAT)
    return standard
