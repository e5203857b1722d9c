"""What a client minimises locally."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn

from intarsia.core import part
from intarsia.training.losses import Loss


@dataclass(frozen=True)
class Situation:
    """What an objective can see: the model, the loss, and the shared parameters as they were received."""

    model: nn.Module
    loss: Loss
    received: Mapping[str, Tensor]
    channels_last: bool = False
    plain: bool = False
    """Whether batches are picked by plain indexing."""


@part
class Objective:
    """The plain loss on the client's data."""

    name: ClassVar[str] = "plain"

    def value(self, at: Situation, fit: Tensor, x: Tensor, outputs: Tensor, y: Tensor) -> Tensor:
        """Return what is minimised on one batch; `fit` is the loss of the outputs."""
        return fit

    @property
    def pull(self) -> float:
        """Strength of a quadratic pull towards the received parameters; FedNova's weights depend on it."""
        return 0.0


@part
class Proximal(Objective):
    """The loss and mu/2 |w - w_t|^2 to the shared parameters received (FedProx, Li et al. 2020, eq. 2)."""

    name: ClassVar[str] = "proximal"

    mu: Annotated[float, Field(ge=0)] = 0.01

    def value(self, at: Situation, fit: Tensor, x: Tensor, outputs: Tensor, y: Tensor) -> Tensor:
        """Return the loss and the proximal term."""
        weights = dict(at.model.named_parameters())
        moved = [(weights[n] - start).square().sum() for n, start in at.received.items()]
        return fit + 0.5 * self.mu * torch.stack(moved).sum() if moved else fit

    @property
    def pull(self) -> float:
        """The strength mu."""
        return self.mu


OBJECTIVES: dict[str, type[Objective]] = {kind.name: kind for kind in (Objective, Proximal)}
