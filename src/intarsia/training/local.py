"""A client at work: its model, its data and what it was sent, as a method's local step sees them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from intarsia.blocks import Values
from intarsia.core import chance
from intarsia.data import ClientInfo, Examples
from intarsia.data.public import PUBLIC, from_tensors
from intarsia.models.norms import refit_statistics
from intarsia.training.descent import Descent, Score, Tally, Trained, batches, device_of, in_order
from intarsia.training.fast import StackMember, chain_for, train_together
from intarsia.training.losses import Loss
from intarsia.training.objectives import Batch, Objective, Situation
from intarsia.training.optimisers import Optimiser, optimiser_for
from intarsia.training.precision import Precision
from intarsia.training.private import PrivateSteps, train_privately
from intarsia.training.settings import Training
from intarsia.training.solver import evaluate, train
from intarsia.trust import Privacy


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
    units: Sequence[tuple[float, float]] = ()
    """Offset and scale of each target, where the model predicts (y - offset) / scale."""
    privacy: Privacy = field(default_factory=Privacy)
    """How single samples are protected while the model is trained."""
    scoring: Precision = "fp32"
    """The arithmetic of scores."""

    def train(self, objective: Objective, *, epochs: int | None = None, purpose: str = "batches") -> Trained:
        """Train the model on the client's own training data."""
        descent = self.descent(objective, epochs)
        if self.privacy.of_examples:
            how = PrivateSteps.of(self.privacy, self.seed, self.round, self.info.name, purpose)
            return train_privately(self.situation, descent, self.data["train"], how)
        noisy = self.data["train"].noise > 0
        chain = None if noisy else chain_for(self.model, self.training, objective, self.loss)
        if chain is None:
            trained = train(self.situation, descent, self.data["train"], self.chance(purpose))
            if self.training.statistics == "refitted":
                refit_statistics(
                    self.model, (batch.x for batch in self.batches(epochs=1, purpose="statistics"))
                )
            return trained
        member = self.stack_member(dict(self.model.named_parameters()), purpose)
        (made,) = train_together(chain, [member], descent)
        self.put(made.weights)
        return made.trained

    def train_on(
        self, examples: Examples, objective: Objective, *, epochs: int, size: int, purpose: str
    ) -> Trained:
        """Train the model on other data, in batches of some size; always by the sequential solver."""
        descent = Descent(objective, replace(self.training, batch_size=size), self.lr, epochs)
        return train(self.situation, descent, examples, self.chance(purpose))

    def stack_member(
        self, weights: Mapping[str, Tensor], purpose: str = "batches", trained: frozenset[str] | None = None
    ) -> StackMember:
        """Return what `train` would train, on these weights, to be trained side by side with other clients.

        `trained` are the names of those that are trained, where they are known.
        """
        trained = frozenset(self.trainable) if trained is None else trained
        return StackMember(weights, trained, self.received, self.data["train"], self.chance(purpose))

    @torch.no_grad()
    def put(self, values: Mapping[str, Tensor]) -> None:
        """Give parameters that are trained these values."""
        weights = self.trainable
        for name, tensor in values.items():
            weights[name].copy_(tensor)

    def descent(self, objective: Objective, epochs: int | None = None) -> Descent:
        """Return how the client descends in this round."""
        return Descent(objective, self.training, self.lr, self.training.epochs if epochs is None else epochs)

    def batches(self, *, epochs: int | None = None, purpose: str = "batches") -> Iterator[Batch]:
        """Yield the client's training data in random batches, as `train` sees it: for steps of one's own."""
        times = self.training.epochs if epochs is None else epochs
        examples, size = self.data["train"], self.training.batch_size
        return batches(self.situation, examples, size, times, self.chance(purpose))

    def in_order(self, split: str = "train") -> Iterator[tuple[Tensor, Tensor]]:
        """Yield one split of the client's data as it lies, in large batches."""
        return in_order(self.model, self.data[split], self.channels_last)

    def optimiser(self, lr: float = 0.0) -> Optimiser:
        """Return a fresh optimiser of what is trained, as the settings name it (0: at the round's learning rate)."""
        return optimiser_for(list(self.trainable.values()), self.training, lr or self.lr)

    def tally(self, descent: Descent | None = None) -> Tally:
        """Return an empty tally of steps and score, for steps of one's own; FedNova's weight is that of a descent."""
        return Tally(self.loss, device_of(self.model), descent)

    @property
    def situation(self) -> Situation:
        """What an objective can see."""
        return Situation(
            self.model,
            self.loss,
            self.received,
            self.channels_last,
            self.training.plain,
            self.sent,
            self.values,
        )

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
        return evaluate(self.model, self.data[split], self.loss, self.channels_last, said, self.scoring)

    def chance(self, purpose: str) -> torch.Generator:
        """Return a generator of this client's own for one purpose of this round."""
        return chance.generator(self.seed, purpose, self.round, self.info.name)
