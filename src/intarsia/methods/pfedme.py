"""Personal models around a shared one, tied to it by Moreau envelopes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar

from pydantic import Field
from torch import Tensor

from intarsia.core import part
from intarsia.methods.personal import PERSONAL, WithPersonalModel
from intarsia.training import Batch, LocalClient, Tally, Trained


@part
class PFedMe(WithPersonalModel):
    """A shared w, and for every client the theta that minimises its loss + lam/2 |theta - w|^2.

    Dinh, Tran and Nguyen 2020, "Personalized federated learning with Moreau envelopes", Algorithm 1. A local
    round takes one batch: some steps towards theta on it, then w <- w - eta lam (w - theta) with eta =
    `training.lr`; batches and epochs give the number R of local rounds. Theta begins at w with the first of them,
    and goes on from there, as in the authors' code. The server goes
    `merge.beta` of the way to the clients' mean. Stages: `before` (the shared model) and `own` (theta).
    Deviations: means are weighted by samples; only clients of the round train; theta comes from a fixed
    number of steps of the optimiser in the settings, not from a given accuracy. A client's own model is
    theta as it was when the client last trained; one that never has makes it of the shared model, by the
    local rounds of one round on its training data.
    """

    name: ClassVar[str] = "pfedme"
    title: ClassVar[str] = "pFedMe"

    lam: Annotated[float, Field(gt=0)] = 15.0
    """How strongly personal models are tied to the shared one (lambda)."""
    inner_steps: Annotated[int, Field(ge=1)] = 5
    """Steps towards theta on each batch (K)."""
    personal_lr: Annotated[float, Field(gt=0)] = 0.05
    """Learning rate of these steps; well below 2 / lam, or they diverge."""

    def train_both(self, client: LocalClient, purpose: str) -> Trained:
        """Play the client's local rounds; the model ends as its w, theta is kept."""
        tally, weights = client.tally(), client.trainable
        shared = {name: weight.detach().clone() for name, weight in weights.items()}
        client.model.train()
        for batch in client.batches(purpose=purpose):
            self._solve(client, shared, batch, tally)
            for name, theta in weights.items():
                shared[name].sub_(shared[name] - theta.detach(), alpha=client.lr * self.lam)
        client.tensors[PERSONAL] = client.snapshot()
        client.put(shared)
        return tally.trained

    def _solve(self, client: LocalClient, shared: Mapping[str, Tensor], batch: Batch, tally: Tally) -> None:
        """Take the model, which is theta, on: steps on the loss of one batch and the pull towards w."""
        optimiser, weights = client.optimiser(self.personal_lr), client.trainable
        for number in range(self.inner_steps):
            passed = self.objective.forward(client.situation, batch)
            passed.value.backward()  # type: ignore[no-untyped-call]
            for name, theta in weights.items():
                if theta.grad is not None:
                    theta.grad.add_(theta.detach() - shared[name], alpha=self.lam)
            optimiser.step()
            if number == 0:
                tally.add(passed, batch.y)
