"""A client at work: its model, its data and what it was sent, as a method's local step sees them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from intarsia.blocks import Values, chance
from intarsia.data import ClientInfo, Examples
from intarsia.training.losses import Loss
from intarsia.training.objectives import Objective, Situation
from intarsia.training.settings import Training
from intarsia.training.solver import Score, Trained, batches, evaluate, in_order, train


@dataclass
class LocalClient:
    """One client during one exchange; the model holds the client's blocks already."""

    info: ClientInfo
    data: Mapping[str, Examples]
    model: nn.Module
    received: Mapping[str, Tensor]
    """The shared parameters as they were received, by name."""
    training: Training
    loss: Loss
    seed: int
    round: int
    rounds: int
    state: dict[str, Any] = field(default_factory=dict)
    """Plain values that stay with the client between rounds; what a step changes is kept."""
    tensors: dict[str, Mapping[str, Tensor]] = field(default_factory=dict)
    """Tensors by purpose and name that stay with the client between rounds, beside its private blocks."""
    values: Values = field(default_factory=dict)
    """Plain values that came with the task."""
    channels_last: bool = False
    """Whether the model takes images with the channels last in memory: faster, same values."""

    def train(self, objective: Objective, *, epochs: int | None = None, purpose: str = "batches") -> Trained:
        """Train the model on the client's own training data."""
        return train(
            Situation(self.model, self.loss, self.received, self.channels_last),
            objective,
            self.data["train"],
            self.training,
            self.lr,
            self.chance(purpose),
            epochs,
        )

    def batches(
        self, *, epochs: int | None = None, size: int | None = None, purpose: str = "batches"
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the client's training data in random batches, as `train` sees it: for steps of one's own."""
        return batches(
            Situation(self.model, self.loss, self.received, self.channels_last),
            self.data["train"],
            size or self.training.batch_size,
            self.training.epochs if epochs is None else epochs,
            self.chance(purpose),
        )

    def in_order(self, split: str) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield one split of the client's data once, as it lies, in large batches."""
        return in_order(self.model, self.data[split], self.channels_last)

    @property
    def lr(self) -> float:
        """The learning rate of this round."""
        return self.training.lr_in(self.round, self.rounds)

    def score(self, split: str) -> Score:
        """Score the model on one split of the client's own data."""
        return evaluate(self.model, self.data[split], self.loss, self.channels_last)

    def chance(self, purpose: str) -> torch.Generator:
        """Return a generator of this client's own for one purpose of this round."""
        return chance.generator(self.seed, purpose, self.round, self.info.name)
