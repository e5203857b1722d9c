"""Models of any kind that learn from the mean of everyone's scores on public data."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field
from torch.nn import functional

from intarsia.core import DataError, part
from intarsia.data import Examples
from intarsia.methods.distilling.common import DIGEST, Approach, Conferring, Count, received, scores_of
from intarsia.training import LocalClient, Trained

STARTED = "started"
"""The client's value that says that its transfer learning is done."""


@part
class FedMD(Conferring):
    """Scores on public data travel instead of models, so every client's model may be another.

    Li and Wang 2019, "FedMD: Heterogenous federated learning via model distillation", Algorithm 1. In every round
    clients score a part of the public data (logits); the server takes the mean, the consensus; each client
    trains its model to approach the consensus on these samples (mean absolute error), `digest_epochs` long, and
    then revisits its own data for `training.epochs`. The paper begins with transfer learning, on the labelled
    public data and then on each client's own, until convergence. Ours: that takes `pretraining` epochs of each, in a
    client's first round, and is left out by default, as it needs public data with labels of the clients' classes.
    Without it, clients of one architecture begin with equal weights: where there is one architecture alone, the first
    consensus is what everyone says already, and the first round's digest teaches nothing. Clients that take part count
    alike in the consensus; scores are made in evaluation mode.
    """

    name: ClassVar[str] = "fedmd"
    title: ClassVar[str] = "FedMD"

    digest_batch: Count = 256
    """Public samples a batch."""
    pretraining: Annotated[int, Field(ge=0)] = 0
    """Epochs of transfer learning, on labelled public data and then on the client's own (0: none)."""

    def begin(self, client: LocalClient) -> None:
        """Train on the labelled public data, then on the client's own, once."""
        if not self.pretraining or STARTED in client.state:
            return
        public, size = received(client), client.training.batch_size
        _check_labels(client, public)
        client.train_on(public, self.objective, epochs=self.pretraining, size=size, purpose="transfer")
        client.train(self.objective, epochs=self.pretraining, purpose="transfer to own")
        client.state[STARTED] = True

    def digest(self, client: LocalClient, samples: Examples) -> Trained:
        """Approach the consensus, then revisit the own data."""
        towards, size = Approach(functional.l1_loss), self.digest_batch
        client.train_on(samples, towards, epochs=self.digest_epochs, size=size, purpose=DIGEST)
        return client.train(self.objective)


def _check_labels(client: LocalClient, public: Examples) -> None:
    classes = scores_of(client, Examples(public.x[:1], public.y[:1], public.scaling)).shape[1]
    if public.y.is_floating_point() or not 0 <= int(public.y.min()) <= int(public.y.max()) < classes:
        raise DataError(
            f"method.pretraining needs public labels of the clients' {classes} classes (0 to {classes - 1}): "
            "choose other public data, or set it to 0"
        )
