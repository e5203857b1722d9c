"""Personal Gaussian networks, tied to a shared one that is their prior."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional

from intarsia.core import part
from intarsia.methods.personal import PERSONAL, WithPersonalModel
from intarsia.methods.pfedbayes.gaussian import Averaged, gaussian, kl_divergence
from intarsia.methods.server import Server
from intarsia.training import LocalClient, Trained, Training, optimiser_for

DIVERGES = 2.0
"""Steps along the tie that are so many times its inverse curvature lead away from the shared means."""


@part
class PFedBayes(WithPersonalModel):
    """A shared Gaussian w over the weights, and for every client a Gaussian v: its loss + zeta KL(v || w).

    Zhang et al. 2022, "Personalized federated learning via variational Bayesian inference". Every weight has a
    mean and a rho, with deviation log(1 + exp(rho)); both travel. On each batch a client takes one step of v on the
    negative log likelihood, expected over weights drawn from v, and zeta KL(v || w); then one step of its copy of w
    on zeta KL(v || w). The server goes `merge.beta` of the way to the clients' mean of w. v stays with the client.
    Stages: `before` (the means of w) and `own` (v). Ours: the likelihood is the mean over samples, so the divergence
    is divided by the number of the client's training samples (the same minimum, and learning rates as
    elsewhere); means are weighted by samples; each v goes on from round to round, and starts from the w that came
    first; one that never trained is made of the shared w by the local steps of one round.
    """

    name: ClassVar[str] = "pfedbayes"
    title: ClassVar[str] = "pFedBayes"
    needs_loss: ClassVar[str] = "cross_entropy"

    zeta: Annotated[float, Field(ge=0)] = 10.0
    """How strongly personal distributions are tied to the shared one."""
    rho: float = -2.5
    """Where every rho starts: deviations of 0.079."""
    samples: Annotated[int, Field(ge=1)] = 1
    """How often weights are drawn for each batch."""
    personal_lr: Annotated[float, Field(ge=0)] = 0.0
    """Learning rate of v (0: `training.lr`, which is that of w)."""
    predictions: Annotated[int, Field(ge=0)] = 0
    """How many draws a model's predictions are averaged over (0: predictions by the means)."""

    def prepare(self, model: nn.Module) -> nn.Module:
        """Make the layers Gaussian."""
        made = gaussian(model, self.rho)
        return Averaged(made, self.predictions) if self.predictions else made

    def check(self, server: Server) -> None:
        """Warn where plain steps of a client's means overshoot what ties them to the shared ones."""
        if server.training.optimizer != "sgd":
            return
        pulls = {name: self._pull(server, name) for name in server.residents}
        most, many = max(pulls, key=pulls.__getitem__), sum(pull >= DIVERGES for pull in pulls.values())
        if many:
            warnings.warn(
                f"pFedBayes diverges with plain SGD where lr * zeta / (samples * deviation^2) reaches {DIVERGES:g}; "
                f"client '{most}' has {pulls[most]:.3g}, and {many} of {len(pulls)} reach it: lower training.lr and "
                "method.personal_lr or method.zeta, raise method.rho, or set training.optimizer to adam",
                stacklevel=2,
            )

    def _pull(self, server: Server, client: str) -> float:
        """Return a client's rate times the curvature of its tie, as deviations are at first."""
        lr = max(server.training.lr_in(1, server.rounds), self.personal_lr)
        deviation = float(functional.softplus(torch.tensor(self.rho, dtype=torch.float64)))
        room = server.clients[client].train_samples * deviation**2
        return lr * self.zeta / room if room else math.inf

    def passes(self, step: str, block: str, training: Training) -> tuple[float, float]:
        """Return one pass for every draw of the weights."""
        return training.epochs * self.samples, 0

    def train_both(self, client: LocalClient, purpose: str) -> Trained:
        """Alternate steps of v, which lies in the model, and of w, which lies beside it."""
        personal, tally = client.trainable, client.tally()
        shared = {name: weight.detach().clone().requires_grad_() for name, weight in personal.items()}
        client.model.load_state_dict(client.tensors.get(PERSONAL, {}), strict=False)
        of_v = client.optimiser(self.personal_lr)
        of_w = optimiser_for(list(shared.values()), client.training, client.lr)
        client.model.train()
        for batch in client.batches(purpose=purpose):
            draws = [self.objective.forward(client.situation, batch) for _ in range(self.samples)]
            torch.stack([draw.value for draw in draws]).mean().backward()  # type: ignore[no-untyped-call]
            self._tie(client, personal, _still(shared)).backward()  # type: ignore[no-untyped-call]
            of_v.step()
            self._tie(client, _still(personal), shared).backward()  # type: ignore[no-untyped-call]
            of_w.step()
            tally.add(draws[0], batch.y)
        client.tensors[PERSONAL] = client.snapshot()
        client.model.load_state_dict(shared, strict=False)
        return tally.trained

    def _tie(self, client: LocalClient, v: Mapping[str, Tensor], w: Mapping[str, Tensor]) -> Tensor:
        return self.zeta / client.info.train_samples * kl_divergence(v, w)


def _still(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.detach() for name, tensor in tensors.items()}
