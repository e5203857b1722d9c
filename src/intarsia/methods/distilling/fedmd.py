"""Models of any kind that learn from the mean of everyone's scores on public data."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field
from torch.nn import functional

from intarsia.blocks import Expected, Values
from intarsia.core import DataError, part
from intarsia.data import Examples
from intarsia.methods.asked import Asked
from intarsia.methods.base import Method, Round, Sharing, report
from intarsia.methods.distilling.common import (
    PREDICT,
    SCORES,
    approach,
    check_public,
    confer,
    expects_scores,
    predict,
    received,
    round_samples,
)
from intarsia.methods.local import StayHome
from intarsia.methods.server import Server
from intarsia.training import LocalClient, train

Count = Annotated[int, Field(ge=1)]
STARTED = "started"
"""The client's value that says that its transfer learning is done."""


@part
class FedMD(Method):
    """Scores on public data travel instead of models, so every client's model may be another.

    Li and Wang 2019, "FedMD: Heterogenous federated learning via model distillation", Algorithm 1. In every round
    clients score a part of the public data (logits); the server takes the mean, the consensus; each client
    trains its model to approach the consensus on these samples (mean absolute error), `digest_epochs` long, and
    then revisits its own data for `training.epochs`. The paper begins with transfer learning, on the labelled
    public data and then on each client's own, until convergence. Ours: it takes `pretraining` epochs of each, in a
    client's first round, and is left out by default, as it needs public data with labels of the clients' classes.
    Without it, clients of one architecture begin with equal weights: where there is one architecture alone, the first
    consensus is what everyone says already, and the first round's digest teaches nothing. Clients that take part count
    alike in the consensus; scores are made in evaluation mode.
    """

    name: ClassVar[str] = "fedmd"
    title: ClassVar[str] = "FedMD"
    needs_loss: ClassVar[str] = "cross_entropy"

    sharing: Sharing = Field(default_factory=StayHome)
    subset: Count = 5000
    """How many public samples a round is about, drawn anew every time (all, if there are fewer)."""
    digest_epochs: Count = 1
    """Epochs towards the consensus."""
    digest_batch: Count = 256
    """Public samples a batch."""
    pretraining: Annotated[int, Field(ge=0)] = 0
    """Epochs of transfer learning, on labelled public data and then on the client's own (0: none)."""

    def round(self, server: Server) -> Round:
        """Let clients predict, then digest the mean."""
        return confer(server, self.sharing, self.subset)

    def local_step(self, step: str, client: LocalClient) -> Values:
        """Score the round's public samples; or approach the consensus and revisit the own data."""
        samples = round_samples(client, self.subset)
        if step == PREDICT:
            self._transfer(client)
            client.answer[SCORES] = {SCORES: predict(client, samples)}
            return {}
        approach(client, samples, self.digest_batch, self.digest_epochs, functional.l1_loss)
        return report(client.train(self.objective))

    def check(self, server: Server) -> None:
        """Refuse public data that not all clients' models can take."""
        check_public(server)

    def expects(self, step: str, asked: Asked) -> Expected:
        """Return what a client answers: scores, or what it says of its training."""
        return expects_scores(step, asked, self.subset)

    def _transfer(self, client: LocalClient) -> None:
        """Train on the labelled public data, then on the client's own, once."""
        if not self.pretraining or STARTED in client.state:
            return
        public, order = received(client), client.chance("transfer")
        _check_labels(client, public)
        train(client.situation, self.objective, public, client.training, client.lr, order, self.pretraining)
        client.train(self.objective, epochs=self.pretraining, purpose="transfer to own")
        client.state[STARTED] = True


def _check_labels(client: LocalClient, public: Examples) -> None:
    classes = predict(client, Examples(public.x[:1], public.y[:1], public.scaling)).shape[1]
    if public.y.is_floating_point() or not 0 <= int(public.y.min()) <= int(public.y.max()) < classes:
        raise DataError(
            f"method.pretraining needs public labels of the clients' {classes} classes (0 to {classes - 1}): "
            "choose other public data, or set it to 0"
        )
