"""A shared model from which one gradient step leads to a good own one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from intarsia.core import SettingsError, chance, part
from intarsia.methods.base import OWN, Method
from intarsia.methods.server import Server
from intarsia.training import Batch, LocalClient, Tally, Trained, Training

Tensors = Mapping[str, Tensor]


@part
class PerFedAvg(Method):
    """FedAvg of f(w - alpha grad f(w)): the loss after a gradient step of the client's own.

    Fallah, Mokhtari and Ozdaglar 2020, "Personalized federated learning with theoretical guarantees: a
    model-agnostic meta-learning approach", Algorithm 1. A local step takes three independent batches D, D', D'':
    v = grad f(w - alpha grad f(w; D); D'), then w <- w - beta (v - alpha H(w; D'') v), with beta =
    `training.lr`. The Hessian H is left out (`fo`), or its product with v is a central difference of gradients
    (`hf`). Stages: `before` (the shared model) and `own` (after one step with alpha on all of the client's
    training data). Deviations: means are weighted by samples; batches are drawn without replacement, in three
    orders of their own; the optimiser of the settings takes the step of the second kind (plain SGD is the paper's).
    """

    name: ClassVar[str] = "per_fedavg"
    title: ClassVar[str] = "Per-FedAvg"

    alpha: Annotated[float, Field(gt=0)] = 0.01
    """Learning rate of the step that makes a client's own model."""
    variant: Literal["hf", "fo"] = "hf"
    """Hessian-free, or first-order: half of the work, and blind to how the step depends on its start."""
    delta: Annotated[float, Field(gt=0)] = 0.001
    """How far apart, in multiples of v, the gradients of `hf` are taken: to either side."""

    def check(self, server: Server) -> None:
        """Refuse differences of gradients that are rounded too much to have any."""
        if self.variant == "hf" and server.training.precision != "fp32":
            raise SettingsError(
                f'method.variant: "hf" takes differences between gradients, which "{server.training.precision}" rounds '
                'away: set it to "fo", or training.precision to "fp32"'
            )

    def passes(self, step: str, block: str, training: Training) -> tuple[float, float]:
        """Return the gradients of a step: before it and after it; with the Hessian, two more."""
        return training.epochs * (4 if self.variant == "hf" else 2), 0

    def train(self, client: LocalClient) -> Trained:
        """Descend by the gradient of the loss after a step."""
        optimiser, tally = client.optimiser(), client.tally(client.descent(self.objective))
        client.model.train()
        curvature = client.batches(purpose="curvature")
        pairs = zip(client.batches(purpose="inner"), client.batches(purpose="batches"), strict=True)
        for step, (inner, outer) in enumerate(pairs, 1):
            ahead = self._after_a_step(client, inner, outer, tally)
            if self.variant == "hf":
                bend = self._hessian_times(client, ahead, next(curvature), step)
                ahead = {name: v - self.alpha * bend[name] for name, v in ahead.items()}
            for name, weight in client.trainable.items():
                weight.grad = ahead.get(name)
            optimiser.step()
        return tally.trained

    def own_model(self, client: LocalClient) -> Iterator[str]:
        """Take one step on the client's training data."""
        yield "before"
        client.model.train()
        total: dict[str, Tensor] = {}
        seen = 0
        for batch in client.batches(epochs=1, purpose="personal"):
            for name, gradient in self._gradient(client, batch).items():
                total[name] = total.get(name, 0.0) + gradient * len(batch.y)
            seen += len(batch.y)
        _move(client, total, -self.alpha / seen)
        yield OWN

    def _after_a_step(self, client: LocalClient, inner: Batch, outer: Batch, tally: Tally) -> Tensors:
        """Return the gradient where a step of the client's own leads; the model stays where it is."""
        start = _copies(client)
        _move(client, self._gradient(client, inner), -self.alpha)
        ahead = self._gradient(client, outer, tally)
        client.put(start)
        return ahead

    def _hessian_times(self, client: LocalClient, v: Tensors, batch: Batch, step: int) -> Tensors:
        """Return the Hessian's product with v by a central difference; dropout is the same on both sides."""
        start, ends = _copies(client), []
        for side in (self.delta, -self.delta):
            _move(client, v, side)
            with chance.torch_seeded(client.seed, "curvature", client.round, client.info.name, step):
                ends.append(self._gradient(client, batch))
            client.put(start)
        above, below = ends
        return {name: (above[name] - below[name]) / (2 * self.delta) for name in v}

    def _gradient(self, client: LocalClient, batch: Batch, tally: Tally | None = None) -> Tensors:
        """Return the gradient of what the client minimises, of every parameter that has one."""
        passed = self.objective.forward(client.situation, batch)
        if tally is not None:
            tally.add(passed, batch.y)
        weights = client.trainable
        found = torch.autograd.grad(passed.value, list(weights.values()), allow_unused=True)
        return {name: g for name, g in zip(weights, found, strict=True) if g is not None}


def _copies(client: LocalClient) -> Tensors:
    return {name: weight.detach().clone() for name, weight in client.trainable.items()}


@torch.no_grad()
def _move(client: LocalClient, direction: Tensors, length: float) -> None:
    weights = client.trainable
    for name, change in direction.items():
        weights[name].add_(change, alpha=length)
