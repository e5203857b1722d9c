"""What a client minimises locally."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal, NamedTuple

import torch
from pydantic import Field
from torch import Tensor, nn

from intarsia.blocks import Values
from intarsia.core import Registry, part
from intarsia.training.losses import Loss

Form = Literal["loss", "pulled", "own"]


@dataclass(frozen=True)
class Situation:
    """What an objective can see: the model, the loss, and what the client was sent."""

    model: nn.Module
    loss: Loss
    received: Mapping[str, Tensor]
    """The shared parameters as they were received, by name."""
    channels_last: bool = False
    plain_indexing: bool = False
    """Whether batches are picked by plain indexing: for comparison."""
    sent: Mapping[str, Mapping[str, Tensor]] = field(default_factory=dict)
    """Tensors that came with the task and are no part of the model, by block and name."""
    values: Values = field(default_factory=dict)
    """Plain values that came with the task."""


class Batch(NamedTuple):
    """The samples of one step: inputs, targets, and their row numbers in the data that is trained on."""

    x: Tensor
    y: Tensor
    rows: Tensor


class Pass(NamedTuple):
    """What a model made of a batch: its outputs, their loss, and the value that is minimised."""

    outputs: Tensor
    fit: Tensor
    value: Tensor


@part
class Objective:
    """The plain loss on the client's data."""

    name: ClassVar[str] = "plain"
    form: ClassVar[Form] = "loss"
    """What `value` is, for the hand-written steps (`training/fast`): the loss alone, `pulled` towards the received
    parameters by `pull`, or something of its `own`, which they leave alone. A subclass with a `value` or `forward` of
    its own that does not declare it is of the last kind."""

    def __init_subclass__(cls) -> None:
        if vars(cls).keys() & {"value", "forward"} and "form" not in vars(cls):
            cls.form = "own"

    def value(self, at: Situation, batch: Batch, outputs: Tensor, fit: Tensor) -> Tensor:
        """Return what is minimised on one batch; `fit` is the loss of the outputs."""
        return fit

    def forward(self, at: Situation, batch: Batch) -> Pass:
        """Pass a batch through the model; for models of which the value needs more than their outputs."""
        outputs = at.model(batch.x)
        fit = at.loss(outputs, batch.y)
        return Pass(outputs, fit, self.value(at, batch, outputs, fit))

    @property
    def pull(self) -> float:
        """Strength of a quadratic pull towards the received parameters; FedNova's weights depend on it."""
        return 0.0


@part
class Proximal(Objective):
    """The loss and mu/2 |w - w_t|^2 to the shared parameters received (FedProx, Li et al. 2020, eq. 2)."""

    name: ClassVar[str] = "proximal"
    form: ClassVar[Form] = "pulled"

    mu: Annotated[float, Field(ge=0)] = 0.01
    """How strongly a client is held to the model that it received."""

    def value(self, at: Situation, batch: Batch, outputs: Tensor, fit: Tensor) -> Tensor:
        """Return the loss and the proximal term."""
        weights = dict(at.model.named_parameters())
        moved = [(weights[n] - start).square().sum() for n, start in at.received.items()]
        return fit + 0.5 * self.mu * torch.stack(moved).sum() if moved else fit

    @property
    def pull(self) -> float:
        """The strength mu."""
        return self.mu


@dataclass(frozen=True)
class Extended(Objective):
    """The objective of the settings, and what a method adds to it in one local step."""

    form: ClassVar[Form] = "own"

    given: Objective

    @property
    def pull(self) -> float:
        """The strength of the given objective's."""
        return self.given.pull


OBJECTIVES: Registry[type[Objective]] = Registry("objectives", Objective, (Objective, Proximal))
