"""How a client descends in a round: over which batches, by which steps, and what is said of it afterwards."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from intarsia.core import DataError
from intarsia.data import Examples, Scaling
from intarsia.training.losses import Loss
from intarsia.training.objectives import Batch, Objective, Pass, Situation
from intarsia.training.optimisers import Optimiser, optimiser_for
from intarsia.training.settings import Training

EVALUATION_BATCH = 250


def batches(
    at: Situation, examples: Examples, size: int, epochs: int, chance: torch.Generator
) -> Iterator[Batch]:
    """Yield all samples in random order, batch by batch, in each of some epochs.

    A last batch of one is left out if batches are normalised.
    """
    device, alone_is_useless = device_of(at.model), size > 1 and _normalises(at.model)
    rows = _rows_first(examples.x)
    for _ in range(epochs):
        order = torch.randperm(len(examples), generator=chance)
        for start in range(0, len(order), size):
            picked = order[start : start + size]
            if alone_is_useless and len(picked) == 1 and start > 0:
                break
            batch = rows[picked] if at.plain_indexing else rows.index_select(0, picked)
            batch = with_noise(batch, examples, chance) if examples.noise else batch
            x = _inputs(batch, examples.scaling, device, at.channels_last)
            yield Batch(x, examples.y.index_select(0, picked).to(device), picked.to(device))


def in_order(
    model: nn.Module, examples: Examples, channels_last: bool = False
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield all samples as they lie, in large batches."""
    device = device_of(model)
    for start in range(0, len(examples), EVALUATION_BATCH):
        rows = _rows_first(examples.x[start : start + EVALUATION_BATCH])
        # A copy, as the model may change its input; and with the same strides wherever the data lies.
        rows = rows.clone(memory_format=torch.contiguous_format)
        x = _inputs(rows, examples.scaling, device, channels_last)
        yield x, examples.y[start : start + EVALUATION_BATCH].to(device)


def inputs_of(examples: Examples, picked: Tensor) -> Tensor:
    """Return the inputs of some samples, on the CPU, in the usual layout."""
    if examples.noise:
        raise DataError(
            "noise that is drawn anew in every batch needs plain training: leave out population.partition.redrawn"
        )
    rows = _rows_first(examples.x).index_select(0, picked)
    return _inputs(rows, examples.scaling, torch.device("cpu"), channels_last=False)


def with_noise(rows: Tensor, examples: Examples, chance: torch.Generator) -> Tensor:
    """Return rows with noise of this batch's own, before they are scaled."""
    factor = 1.0 if examples.scaling is None else examples.scaling.factor
    return rows.float() + torch.randn(rows.shape, generator=chance) * (examples.noise / factor)


def _rows_first(x: Tensor) -> Tensor:
    """Images as rows of (height, width, channels): picking rows then gives batches in channels-last."""
    return x.permute(0, 2, 3, 1).contiguous() if x.dim() == 4 else x


def _inputs(rows: Tensor, scaling: Scaling | None, device: torch.device, channels_last: bool) -> Tensor:
    """Move rows to the device, scale them, and give images their usual order of dimensions back."""
    rows = rows.to(device)
    x = rows if scaling is None else scaling.apply(rows)
    if x.dim() != 4:
        return x
    images = x.permute(0, 3, 1, 2)
    return images if channels_last else channels_first(images)


def channels_first(images: Tensor) -> Tensor:
    """Return images in the usual layout; with one channel both are contiguous, so a fresh view tells them apart."""
    return images.contiguous().flatten().view(images.shape)


def device_of(model: nn.Module) -> torch.device:
    """Return where a model lies."""
    return next((p.device for p in model.parameters()), torch.device("cpu"))


def _normalises(model: nn.Module) -> bool:
    return any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in model.modules())


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
