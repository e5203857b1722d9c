"""Models of any kind whose scores on public data are made to correlate, class by class."""

from __future__ import annotations

import copy
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn

from intarsia.blocks import Expected, Values
from intarsia.core import part
from intarsia.methods.asked import Asked
from intarsia.methods.base import Method, Round, Sharing, report
from intarsia.methods.distilling.common import (
    PREDICT,
    SCORES,
    approach,
    ask,
    check_public,
    confer,
    divergence,
    expects_scores,
    predict,
    round_samples,
)
from intarsia.methods.local import StayHome
from intarsia.methods.server import Server
from intarsia.training import LocalClient, Trained, step_weight

Count = Annotated[int, Field(ge=1)]
Weight = Annotated[float, Field(ge=0)]
ALONE = "alone"
"""The purpose of the tensors of the model that a client trained before it met others."""
FLAT = 1e-6
"""Scores that differ by less over a batch are constant."""


@part
class FCCL(Method):
    """Learn from others on unlabelled public data, and do not forget it, nor oneself, on one's own.

    Huang, Ye and Du 2022, "Learn from others and be yourself in heterogeneous federated learning". Collaborative
    updating: with c_uv the correlation, over public samples, of the client's score for class u with the mean of all
    clients' scores for class v, the client minimises sum_u (c_uu - 1)^2 + `off_diagonal` sum_{u != v} (c_uv + 1)^2.
    Local updating: cross entropy on the own data + `inter` KL(before || model) + `intra` KL(alone || model), where
    `before` is the client's model as its last round left it, before this round's collaborative updating, and `alone`
    the one that it trained on its own data before its first round; in that round both are the same. Ours: scores
    travel once a round, for `subset` public samples; `alone` takes `pretraining` epochs; weights of 1; teachers are
    in evaluation mode, temperatures are 1.
    """

    name: ClassVar[str] = "fccl"
    title: ClassVar[str] = "FCCL"
    needs_loss: ClassVar[str] = "cross_entropy"

    sharing: Sharing = Field(default_factory=StayHome)
    subset: Count = 5000
    """How many public samples a round is about, drawn anew every time (all, if there are fewer)."""
    digest_epochs: Count = 1
    """Epochs of collaborative updating."""
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

    def round(self, server: Server) -> Round:
        """Let clients predict, then digest the mean."""
        return confer(server, self.sharing, self.subset)

    def local_step(self, step: str, client: LocalClient) -> Values:
        """Score the round's public samples; or update together with the others, then on the own data."""
        samples = round_samples(client, self.subset)
        if step == PREDICT:
            if ALONE not in client.tensors:
                client.train(self.objective, epochs=self.pretraining, purpose=ALONE)
                client.tensors[ALONE] = client.snapshot()
            client.answer[SCORES] = {SCORES: predict(client, samples)}
            return {}
        before = copy.deepcopy(client.model).eval()
        approach(client, samples, self.digest_batch, self.digest_epochs, self.dissent)
        return report(self._train(client, before))

    def check(self, server: Server) -> None:
        """Refuse public data that not all clients' models can take."""
        check_public(server)

    def expects(self, step: str, asked: Asked) -> Expected:
        """Return what a client answers: scores, or what it says of its training."""
        return expects_scores(step, asked, self.subset)

    def dissent(self, scores: Tensor, consensus: Tensor) -> Tensor:
        """Return how far the scores' correlations with the consensus are from 1 in the same class, else from -1."""
        c = correlation(scores, consensus)
        same = c.diagonal()
        off = (c + 1).square().sum() - (same + 1).square().sum()
        return (same - 1).square().sum() + self.off_diagonal * off

    def _train(self, client: LocalClient, before: nn.Module) -> Trained:
        """Train on the own data with both teachers."""
        alone = copy.deepcopy(before)
        alone.load_state_dict(client.tensors[ALONE], strict=False)
        optimiser, tally, steps = client.optimiser(), client.tally(), 0
        client.model.train()
        for x, y in client.batches():
            outputs = client.model(x)
            fit = client.loss(outputs, y)
            value = self.objective.value(client.situation, fit, x, outputs, y)
            for teacher, weight in ((before, self.inter), (alone, self.intra)):
                value = value + weight * divergence(ask(teacher, x), outputs)
            value.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
            tally.add(fit, outputs, y)
            steps += 1
        weight = step_weight(steps, client.training, client.lr, self.objective.pull)
        return Trained(tally.score, steps, weight)


def correlation(one: Tensor, other: Tensor) -> Tensor:
    """Return the correlation of every column of one table with every column of another."""
    return _standard(one).T @ _standard(other)


def _standard(table: Tensor) -> Tensor:
    """Return the columns with mean 0 and length 1; one that is constant is 0, and nothing pulls at it."""
    centred = table - table.mean(0)
    length = torch.linalg.vector_norm(centred, dim=0)
    standard: Tensor = centred * (length > FLAT) / length.clamp_min(FLAT)
    return standard
