"""A client at work: its model, its data and what it was sent, as a method's local step sees them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from intarsia.blocks import Values
from intarsia.core import chance
from intarsia.data import ClientInfo, Examples
from intarsia.data.public import PUBLIC, from_tensors
from intarsia.training.fast.batched import Learned, Lesson, takes, train_together
from intarsia.training.fast.stacked import Rule
from intarsia.training.losses import Loss
from intarsia.training.objectives import Objective, Situation
from intarsia.training.optimisers import Optimiser, optimiser_for
from intarsia.training.settings import Training
from intarsia.training.solver import Score, Tally, Trained, batches, device_of, evaluate, in_order, train


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
    sent: Mapping[str, Mapping[str, Tensor]] = field(default_factory=dict)
    """Tensors that came with the task and are no part of the model, by block and name."""
    answer: dict[str, Mapping[str, Tensor]] = field(default_factory=dict)
    """Tensors that travel back beside the blocks, by purpose and name; nothing merges them."""
    channels_last: bool = False
    """Whether the model takes images with the channels last in memory: faster, same values."""

    def train(self, objective: Objective, *, epochs: int | None = None, purpose: str = "batches") -> Trained:
        """Train the model on the client's own training data."""
        chain = takes(self.model, self.training, objective, self.loss)
        if chain is not None:
            lesson = self.lesson(dict(self.model.named_parameters()), purpose)
            (learned,) = train_together(chain, [lesson], self.rule(objective, epochs))
            return self.learn(learned)
        return train(
            self.situation,
            objective,
            self.data["train"],
            self.training,
            self.lr,
            self.chance(purpose),
            epochs,
        )

    def lesson(self, weights: Mapping[str, Tensor], purpose: str = "batches") -> Lesson:
        """Return what `train` would train, on these weights, to be trained beside other clients."""
        trained = frozenset(self.trainable)
        return Lesson(weights, trained, self.received, self.data["train"], self.chance(purpose))

    @torch.no_grad()
    def learn(self, learned: Learned) -> Trained:
        """Put what was learned beside others into the model."""
        weights = self.trainable
        for name, tensor in learned.weights.items():
            weights[name].copy_(tensor)
        return learned.trained

    def rule(self, objective: Objective, epochs: int | None = None) -> Rule:
        """Return how the client trains in this round."""
        return Rule(self.training, self.lr, objective, self.training.epochs if epochs is None else epochs)

    def batches(
        self, *, epochs: int | None = None, size: int | None = None, purpose: str = "batches"
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the client's training data in random batches, as `train` sees it: for steps of one's own."""
        for x, y, _ in self.numbered_batches(epochs=epochs, size=size, purpose=purpose):
            yield x, y

    def numbered_batches(
        self, *, epochs: int | None = None, size: int | None = None, purpose: str = "batches"
    ) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Yield the same batches, each with the row numbers of its samples."""
        return batches(
            self.situation,
            self.data["train"],
            size or self.training.batch_size,
            self.training.epochs if epochs is None else epochs,
            self.chance(purpose),
        )

    def in_order(self, split: str = "train") -> Iterator[tuple[Tensor, Tensor]]:
        """Yield one split of the client's data as it lies, in large batches."""
        return in_order(self.model, self.data[split], self.channels_last)

    def optimiser(self, lr: float | None = None) -> Optimiser:
        """Return a fresh optimiser of what is trained, as the settings name it."""
        weights = list(self.trainable.values())
        return optimiser_for(weights, self.training, self.lr if lr is None else lr)

    def tally(self) -> Tally:
        """Return an empty tally of the model's score while it is trained."""
        return Tally(self.loss, device_of(self.model))

    @property
    def situation(self) -> Situation:
        """What an objective can see."""
        return Situation(self.model, self.loss, self.received, self.channels_last, self.training.plain)

    @property
    def trainable(self) -> dict[str, nn.Parameter]:
        """The parameters that are trained, by name."""
        return {name: weight for name, weight in self.model.named_parameters() if weight.requires_grad}

    def snapshot(self) -> dict[str, Tensor]:
        """Return copies of what training changes: trained parameters and buffers."""
        return {
            name: tensor.detach().clone()
            for name, tensor in self.model.state_dict(keep_vars=True).items()
            if tensor.requires_grad or not isinstance(tensor, nn.Parameter)
        }

    @property
    def public(self) -> Examples | None:
        """Public data, if it was sent (as a block `public`)."""
        return from_tensors(self.sent[PUBLIC]) if PUBLIC in self.sent else None

    @property
    def lr(self) -> float:
        """The learning rate of this round."""
        return self.training.lr_in(self.round, self.rounds)

    def score(self, split: str, said: list[Tensor] | None = None) -> Score:
        """Score the model on one split of the client's own data; its outputs are added to `said`."""
        return evaluate(self.model, self.data[split], self.loss, self.channels_last, said)

    def chance(self, purpose: str) -> torch.Generator:
        """Return a generator of this client's own for one purpose of this round."""
        return chance.generator(self.seed, purpose, self.round, self.info.name)
