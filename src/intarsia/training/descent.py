"""How a client descends in a round, and what is said of it afterwards."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from intarsia.training.losses import Loss
from intarsia.training.objectives import Objective, Pass
from intarsia.training.optimisers import Optimiser, optimiser_for
from intarsia.training.settings import Training


@dataclass(frozen=True)
class Score:
    """How a model does on some samples; `correct` is -1 where nothing can be correct (regression)."""

    n: int
    correct: int
    loss: float


@dataclass(frozen=True)
class Trained:
    """What local training did: the score while training, the steps and FedNova's weight of them."""

    score: Score
    steps: int
    step_weight: float


@dataclass(frozen=True)
class Descent:
    """What is minimised, by which settings, at which learning rate, and for how many epochs."""

    objective: Objective
    training: Training
    lr: float
    epochs: int

    def optimiser(self, weights: Sequence[Tensor]) -> Optimiser:
        """Return a fresh optimiser of these weights."""
        return optimiser_for(weights, self.training, self.lr)

    def step_weight(self, steps: int) -> float:
        """Return |a_i|, how much the local gradients weigh in all (FedNova, Wang et al. 2020, section 4).

        SGD: the number of steps; momentum rho: (t - rho(1-rho^t)/(1-rho)) / (1-rho). A proximal pull mu is part of the
        gradient, so it goes through the momentum too: v <- rho v + 1 - lr mu w, w <- w + v. Adam has no such vector;
        its steps are counted.
        """
        if self.training.optimizer == "adam":
            return float(steps)
        weight, velocity, pulled = 0.0, 0.0, self.lr * self.objective.pull
        for _ in range(steps):
            push = self.training.momentum * velocity + 1.0
            weight, velocity = weight * (1.0 - pulled) + push, push - pulled * weight
        return weight


class Tally:
    """The steps and the score of a model while it is trained; nothing leaves the device before the end."""

    def __init__(self, loss: Loss, device: torch.device, descent: Descent | None = None) -> None:
        self.loss, self.descent = loss, descent
        self.steps = self.seen = 0
        self._total = torch.zeros((), device=device)
        self._hits = torch.zeros((), dtype=torch.long, device=device)

    def add(self, passed: Pass, y: Tensor) -> None:
        """Count one step, and the batch that it was about."""
        self.steps += 1
        self.seen += len(y)
        self._total += passed.fit.detach() * len(y)
        if self.loss.hits is not None:
            self._hits += self.loss.hits(passed.outputs.detach(), y)

    @property
    def trained(self) -> Trained:
        """What training did; steps that are of no descent weigh 1 each."""
        hits = int(self._hits) if self.loss.hits else -1
        score = Score(self.seen, hits, float(self._total) / max(1, self.seen))
        weight = self.descent.step_weight(self.steps) if self.descent else float(self.steps)
        return Trained(score, self.steps, weight)
