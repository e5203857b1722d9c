"""Shared components, mixed by each client for itself."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn

from intarsia.blocks import ME, Cut, Expected, Values
from intarsia.core import SettingsError, part
from intarsia.data import ClientInfo
from intarsia.methods.asked import Asked, of_training
from intarsia.methods.base import OWN, Method, Sharing, report
from intarsia.methods.fedem.mixture import Differ, Mixture, mixture_of
from intarsia.training import LocalClient, Trained, step_weight

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

    def local_step(self, step: str, client: LocalClient) -> Values:
        """Say which component is responsible for which sample, then train the components on that."""
        model, optimiser, tally, steps = _mixture(client), client.optimiser(), client.tally(), 0
        responsible = _fit_weights(client, 1).to(model.weights)
        client.state[MIXED] = True
        model.train()
        for x, y, rows in client.numbered_batches():
            each = model.each(x)
            outputs = model.mix(each)
            fit = (responsible[:, rows] * _losses(each, y)).sum(0).mean()
            self.objective.value(client.situation, fit, x, outputs, y).backward()  # type: ignore[no-untyped-call]
            optimiser.step()
            tally.add(client.loss(outputs.detach(), y), outputs, y)
            steps += 1
        weight = step_weight(steps, client.training, client.lr, self.objective.pull)
        return report(Trained(tally.score, steps, weight))

    def expects(self, step: str, asked: Asked) -> Expected:
        """Return what a client reports of its training."""
        return of_training(asked)

    def own_model(self, client: LocalClient) -> Iterator[str]:
        """Mix the components by the client's weights; find them first where training has not."""
        if MIXED not in client.state:
            _fit_weights(client, STEPS)
        yield OWN


@torch.no_grad()
def _fit_weights(client: LocalClient, steps: int) -> Tensor:
    """Take steps of EM on the client's mixture weights; return the last responsibilities (components, samples)."""
    model = _mixture(client)
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


def _mixture(client: LocalClient) -> Mixture:
    if not isinstance(client.model, Mixture):
        raise SettingsError("fedem needs the mixture that it prepares of a model")
    return client.model
