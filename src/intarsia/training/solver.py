"""The local solver: mini-batch descent on one client's data, and evaluation."""

from __future__ import annotations

import copy
import ctypes
import functools
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from intarsia.core import DataError
from intarsia.data import Examples, Scaling
from intarsia.training.fast.folded import folded
from intarsia.training.losses import Loss
from intarsia.training.objectives import Objective, Situation
from intarsia.training.optimisers import optimiser_for
from intarsia.training.settings import Training

EVALUATION_BATCH = 250


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


class Tally:
    """The score of a model while it is trained, batch by batch; nothing leaves the device before the end."""

    def __init__(self, loss: Loss, device: torch.device) -> None:
        self.loss = loss
        self.seen = 0
        self._total = torch.zeros((), device=device)
        self._hits = torch.zeros((), dtype=torch.long, device=device)

    def add(self, fit: Tensor, outputs: Tensor, y: Tensor) -> None:
        """Count one batch; `fit` is the loss of the outputs."""
        self.seen += len(y)
        self._total += fit.detach() * len(y)
        if self.loss.hits is not None:
            self._hits += self.loss.hits(outputs.detach(), y)

    @property
    def score(self) -> Score:
        """The score over all batches."""
        hits = int(self._hits) if self.loss.hits else -1
        return Score(self.seen, hits, float(self._total) / max(1, self.seen))


def train(
    situation: Situation,
    objective: Objective,
    examples: Examples,
    training: Training,
    lr: float,
    chance: torch.Generator,
    epochs: int | None = None,
) -> Trained:
    """Train the model in place on the parameters that require a gradient, epoch by epoch."""
    model, loss = situation.model, situation.loss
    weights = [p for p in model.parameters() if p.requires_grad]
    optimiser = optimiser_for(weights, training, lr)
    tally, steps = Tally(loss, device_of(model)), 0
    model.train()
    epochs = training.epochs if epochs is None else epochs
    with folded(model, objective, training, lr):
        for x, y, _ in batches(situation, examples, training.batch_size, epochs, chance):
            outputs = model(x)
            fit = loss(outputs, y)
            value = objective.value(situation, fit, x, outputs, y)
            if weights:
                value.backward()  # type: ignore[no-untyped-call]
                optimiser.step()
            steps += 1
            tally.add(fit, outputs, y)
    return Trained(tally.score, steps, step_weight(steps, training, lr, objective.pull))


def batches(
    situation: Situation, examples: Examples, size: int, epochs: int, chance: torch.Generator
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Yield all samples in random order, batch by batch, in each of some epochs; with their row numbers."""
    device = device_of(situation.model)
    for _ in range(epochs):
        yield from _shuffled(examples, size, chance, situation, device)


@torch.inference_mode()
def evaluate(
    model: nn.Module,
    examples: Examples,
    loss: Loss,
    channels_last: bool = False,
    said: list[Tensor] | None = None,
) -> Score:
    """Score the model in evaluation mode, in large batches; its outputs are added to `said`, if they are wanted."""
    model.eval()
    total, correct = 0.0, 0
    for x, y in in_order(model, examples, channels_last):
        outputs = model(x)
        total += float(loss.total(outputs, y))
        correct += int(loss.hits(outputs, y)) if loss.hits else 0
        if said is not None:
            said.append(outputs.to("cpu", copy=True))
    n = len(examples)
    return Score(n, correct if loss.hits else -1, total / n)


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


def step_weight(steps: int, training: Training, lr: float, pull: float) -> float:
    """Return |a_i|, how much the local gradients weigh in all (FedNova, Wang et al. 2020, section 4).

    SGD: the number of steps; momentum rho: (t - rho(1-rho^t)/(1-rho)) / (1-rho). A proximal pull mu is part of the
    gradient, so it goes through the momentum too: v <- rho v + 1 - lr mu w, w <- w + v. Adam has no such vector; its
    steps are counted.
    """
    if training.optimizer == "adam":
        return float(steps)
    weight, velocity = 0.0, 0.0
    for _ in range(steps):
        push = training.momentum * velocity + 1.0
        weight, velocity = weight * (1.0 - lr * pull) + push, push - lr * pull * weight
    return weight


def prepare(model: nn.Module) -> nn.Module:
    """Give a model the memory layout that is fast for images: channels last."""
    return _lay_out(model, torch.channels_last)


def plain_layout(model: nn.Module) -> nn.Module:
    """Undo `prepare`: the layout that torch gives a model by itself."""
    return _lay_out(model, torch.contiguous_format)


def _lay_out(model: nn.Module, layout: torch.memory_format) -> nn.Module:
    for tensor in (*model.parameters(), *model.buffers()):
        if tensor.dim() == 4:
            tensor.data = tensor.data.contiguous(memory_format=layout)
    return model


@torch.inference_mode()
def trial(model: nn.Module, examples: Examples, loss: Loss, outputs: int = 1) -> bool:
    """Try a copy of the model on two samples; return whether it takes images with the channels last.

    Some networks flatten with `view`, which only the usual layout allows. What fails in both raises, and so does a
    model with fewer outputs than there must be.
    """
    some = Examples(examples.x[:2], examples.y[:2], examples.scaling)
    tried = copy.deepcopy(model)
    evaluate(tried, some, loss)
    if loss.hits and (given := next(tried(x).shape[1] for x, _ in in_order(tried, some))) < outputs:
        raise DataError(f"it gives {given} scores, and there are {outputs} classes")
    if examples.x.dim() != 4 or all(p.dim() != 4 for p in model.parameters()):
        return False
    try:
        evaluate(prepare(copy.deepcopy(model)), some, loss, channels_last=True)
    except RuntimeError:
        return False
    return True


@functools.cache
def tune_allocator() -> None:
    """Keep freed memory in the process: else every step returns it and faults the pages in again.

    glibc only; same values, fewer page faults. `INTARSIA_ALLOCATOR=system` leaves it as it is.
    """
    if not sys.platform.startswith("linux") or os.environ.get("INTARSIA_ALLOCATOR") == "system":
        return
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt") and hasattr(libc, "gnu_get_libc_version"):
        trim_threshold, mmap_threshold = -1, -3
        libc.mallopt(mmap_threshold, 1 << 30)
        libc.mallopt(trim_threshold, (1 << 31) - 1)


def _shuffled(
    examples: Examples, size: int, chance: torch.Generator, situation: Situation, device: torch.device
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Yield the samples once, in random order; a last batch of one is left out if batches are normalised."""
    alone_is_useless = size > 1 and _normalises(situation.model)
    order = torch.randperm(len(examples), generator=chance)
    rows = _rows_first(examples.x)
    for start in range(0, len(order), size):
        picked = order[start : start + size]
        if alone_is_useless and len(picked) == 1 and start > 0:
            return
        batch = rows[picked] if situation.plain else rows.index_select(0, picked)
        x = _inputs(batch, examples.scaling, device, situation.channels_last)
        yield x, examples.y.index_select(0, picked).to(device), picked.to(device)


def inputs_of(examples: Examples, picked: Tensor) -> Tensor:
    """Return the inputs of some samples, on the CPU, in the usual layout."""
    rows = _rows_first(examples.x).index_select(0, picked)
    return _inputs(rows, examples.scaling, torch.device("cpu"), channels_last=False)


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
