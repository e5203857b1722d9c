"""Personal models around a shared one, tied to it by Moreau envelopes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

from pydantic import Field
from torch import Tensor

from intarsia.core import part
from intarsia.methods.personal import PERSONAL, WithPersonalModel
from intarsia.training import Batch, LocalClient, Tally, Trained, Training
from intarsia.training.optimisers import Optimiser


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
    local rounds of one round on its training data. `form = "kept"` is what FedEM's test bed (Marfoq et al. 2021)
    calls pFedMe: theta goes on from where the client left it, one step a batch at `training.lr`, pulled towards the w
    that it received; theta itself is what is averaged.
    """

    name: ClassVar[str] = "pfedme"
    title: ClassVar[str] = "pFedMe"

    lam: Annotated[float, Field(gt=0)] = 15.0
    """How strongly personal models are tied to the shared one (lambda)."""
    inner_steps: Annotated[int, Field(ge=1)] = 5
    """Steps towards theta on each batch (K)."""
    personal_lr: Annotated[float, Field(gt=0)] = 0.05
    """Learning rate of these steps; well below 2 / lam, or they diverge."""
    form: Literal["published", "kept"] = "published"
    """Algorithm 1; or personal models that are kept from round to round, as FedEM's test bed has it (`inner_steps`
    and `personal_lr` do not count there)."""

    def passes(self, step: str, block: str, training: Training) -> tuple[float, float]:
        """Return the inner steps on every batch."""
        return training.epochs * (self.inner_steps if self.form == "published" else 1), 0

    def train_both(self, client: LocalClient, purpose: str) -> Trained:
        """Play the client's local rounds; the model ends as its w, theta is kept."""
        if self.form == "kept":
            return self._go_on(client, purpose)
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

    def _go_on(self, client: LocalClient, purpose: str) -> Trained:
        """Take the kept theta on, and send it."""
        tally, weights = client.tally(), client.trainable
        shared = {name: weight.detach().clone() for name, weight in weights.items()}
        if PERSONAL in client.tensors:
            client.model.load_state_dict(client.tensors[PERSONAL], strict=False)
        optimiser = client.optimiser()
        client.model.train()
        for batch in client.batches(purpose=purpose):
            self._step(client, shared, batch, optimiser, tally)
        client.tensors[PERSONAL] = client.snapshot()
        return tally.trained

    def _solve(self, client: LocalClient, shared: Mapping[str, Tensor], batch: Batch, tally: Tally) -> None:
        """Take the model, which is theta, on: steps on the loss of one batch and the pull towards w."""
        optimiser = client.optimiser(self.personal_lr)
        for number in range(self.inner_steps):
            self._step(client, shared, batch, optimiser, tally if number == 0 else None)

    def _step(
        self,
        client: LocalClient,
        shared: Mapping[str, Tensor],
        batch: Batch,
        optimiser: Optimiser,
        tally: Tally | None,
    ) -> None:
        """Take one step of theta, which the model is; count it, where it is to be counted."""
        passed = self.objective.forward(client.situation, batch)
        passed.value.backward()  # type: ignore[no-untyped-call]
        for name, theta in client.trainable.items():
            if theta.grad is not None:
                theta.grad.add_(theta.detach() - shared[name], alpha=self.lam)
        optimiser.step()
        if tally is not None:
            tally.add(passed, batch.y)
