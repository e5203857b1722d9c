"""Shared components, mixed by each client for itself."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn

from intarsia.blocks import ME, Cut
from intarsia.core import SettingsError, part
from intarsia.data import ClientInfo
from intarsia.methods.base import OWN, Method, Sharing
from intarsia.methods.fedem.mixture import Differ, Mixture, mixture_of
from intarsia.training import Batch, Extended, LocalClient, Pass, Situation, Trained, Training, through

MIXTURE = "mixture"
MIXED = "mixed"
"""The client's value that says that its mixture weights come from training."""
STEPS = 100
"""Steps of EM on the weights alone; each is a mean over a small table."""


@part
class SharedComponents(Sharing):
    """Every component of a mixture with everyone; the mixture's weights at home."""

    name: ClassVar[str] = "fedem"
    needs: ClassVar[frozenset[str]] = frozenset({MIXTURE})

    def cut(self, model: nn.Module) -> Cut:
        """Cut the components apart from each other and from the weights."""
        if not isinstance(model, Mixture):
            raise SettingsError("sharing 'fedem' is for the mixture that method 'fedem' makes of a model")
        return Cut({name: (f"components.{name}.*",) for name in model.components} | {MIXTURE: ("weights",)})

    def group(self, block: str, client: ClientInfo) -> str:
        """Return the client itself for the weights, everyone for a component."""
        return ME if block == MIXTURE else self.everyone(client)


@dataclass(frozen=True)
class WeightedLosses(Extended):
    """Every component's loss on every sample, weighted by how responsible it is (the M-step of the components)."""

    responsible: Tensor
    """By component and row of the training data."""

    def forward(self, at: Situation, batch: Batch) -> Pass:
        """Pass a batch through the components; the score while training is that of their mixture."""
        model = _mixture(at.model)
        each = through(model, model.each, batch.x)
        outputs = model.mix(each)
        weighted = (self.responsible[:, batch.rows] * _losses(each, batch.y)).sum(0).mean()
        value = self.given.value(at, batch, outputs, weighted)
        return Pass(outputs, at.loss(outputs.detach(), batch.y), value)


@part
class FedEM(Method):
    """M components shared by all, and a client's own model is its mixture of them.

    Marfoq et al. 2021, "Federated multi-task learning under a mixture of distributions", Algorithm 1. In every
    round a client takes, on the components it received, the E-step q_im ~ pi_m exp(-loss of component m on sample i)
    and the M-step of its weights, pi_m = mean of q_im; then it trains every component on the loss of its samples
    weighted by q. Components are averaged, weighted by samples. The own model's probabilities are the pi-weighted
    mean of those of the components. Deviations: responsibilities are computed in evaluation mode (no dropout); a client
    that has not trained yet fits its weights as the paper has it for clients that were not there in
    training: EM on pi alone, components fixed, here until it has settled.
    """

    name: ClassVar[str] = "fedem"
    title: ClassVar[str] = "FedEM"
    needs_loss: ClassVar[str] = "cross_entropy"
    weighs_classes: ClassVar[bool] = False

    sharing: Sharing = Field(default_factory=SharedComponents)
    components: Annotated[int, Field(ge=1)] = 3
    """How many components there are (M)."""
    differ: Differ = "all"
    """What of the second and later components starts from new random weights: everything, or only the last part:
    for models that start from a pre-trained base."""

    def prepare(self, model: nn.Module) -> nn.Module:
        """Make a mixture of the model and of others like it."""
        if not isinstance(self.sharing, SharedComponents):
            raise SettingsError(
                f"method 'fedem' shares components and keeps the weights at home: sharing '{self.sharing.name}' does "
                "not; leave `sharing` out"
            )
        return mixture_of(model, self.components, self.differ)

    def train(self, client: LocalClient) -> Trained:
        """Say which component is responsible for which sample, then train the components on that."""
        responsible = _fit_weights(client, 1).to(_mixture(client.model).weights)
        client.state[MIXED] = True
        return client.train(WeightedLosses(self.objective, responsible))

    def passes(self, step: str, block: str, training: Training) -> tuple[float, float]:
        """Return the epochs, and the pass that says which component is responsible."""
        return training.epochs, 1

    def own_model(self, client: LocalClient) -> Iterator[str]:
        """Mix the components by the client's weights; find them first where training has not."""
        if MIXED not in client.state:
            _fit_weights(client, STEPS)
        yield OWN


@torch.no_grad()
def _fit_weights(client: LocalClient, steps: int) -> Tensor:
    """Take steps of EM on the client's mixture weights; return the last responsibilities (components, samples)."""
    model = _mixture(client.model)
    model.eval()
    losses = torch.cat([_losses(model.each(x), y).cpu().double() for x, y in client.in_order()], 1)
    weights, responsible = model.weights.cpu().double(), losses
    for _ in range(steps):
        responsible = (weights.log()[:, None] - losses).softmax(0)
        weights = responsible.mean(1)
    model.weights.copy_(weights)
    return responsible


def _losses(each: Tensor, y: Tensor) -> Tensor:
    """Return the loss of every component on every sample: (components, samples)."""
    return -each[:, torch.arange(len(y), device=y.device), y]


def _mixture(model: nn.Module) -> Mixture:
    if not isinstance(model, Mixture):
        raise SettingsError("fedem needs the mixture that it prepares of a model")
    return model
