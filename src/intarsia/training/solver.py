"""The local solver: mini-batch descent on one client's data, and evaluation."""

from __future__ import annotations

import copy
import ctypes
import functools
import os
import sys

import torch
from torch import Tensor, nn

from intarsia.core import DataError, warn
from intarsia.data import Examples
from intarsia.training.descent import Descent, Score, Tally, Trained, batches, device_of, in_order
from intarsia.training.fast import folded
from intarsia.training.losses import Loss
from intarsia.training.objectives import Situation
from intarsia.training.precision import Precision, computed


def train(at: Situation, descent: Descent, examples: Examples, chance: torch.Generator) -> Trained:
    """Train the model in place on the parameters that require a gradient, epoch by epoch."""
    model, objective = at.model, descent.objective
    weights = [p for p in model.parameters() if p.requires_grad]
    optimiser = descent.optimiser(weights)
    tally = Tally(at.loss, device_of(model), descent)
    model.train()
    with folded(model, descent):
        for batch in batches(at, examples, descent.training.batch_size, descent.epochs, chance):
            passed = objective.forward(at, batch)
            if weights:
                passed.value.backward()  # type: ignore[no-untyped-call]
                optimiser.step()
            tally.add(passed, batch.y)
    return tally.trained


@torch.inference_mode()
def evaluate(
    model: nn.Module,
    examples: Examples,
    loss: Loss,
    channels_last: bool = False,
    said: list[Tensor] | None = None,
    precision: Precision = "fp32",
) -> Score:
    """Score the model in evaluation mode, in large batches; its outputs are added to `said`, if they are wanted."""
    model.eval()
    total, correct = 0.0, 0
    for x, y in in_order(model, examples, channels_last):
        outputs = computed(precision, x.device, model, x)
        total += float(loss.function(outputs, y) * len(y))  # weights are for training
        correct += int(loss.hits(outputs, y)) if loss.hits else 0
        if said is not None:
            said.append(outputs.to("cpu", copy=True))
    n = len(examples)
    return Score(n, correct if loss.hits else -1, total / n)


@torch.no_grad()
def predict(model: nn.Module, examples: Examples, channels_last: bool = False) -> Tensor:
    """Return what the model says of every sample, in evaluation mode."""
    model.eval()
    return torch.cat([model(x) for x, _ in in_order(model, examples, channels_last)])


def channels_last_layout(model: nn.Module) -> nn.Module:
    """Give a model the memory layout that is fast for images: channels last."""
    return _lay_out(model, torch.channels_last)


def usual_layout(model: nn.Module) -> nn.Module:
    """Give a model the layout that torch gives it by itself."""
    return _lay_out(model, torch.contiguous_format)


def _lay_out(model: nn.Module, layout: torch.memory_format) -> nn.Module:
    for tensor in (*model.parameters(), *model.buffers()):
        if tensor.dim() == 4:
            tensor.data = tensor.data.contiguous(memory_format=layout)
    return model


@torch.inference_mode()
def try_model(model: nn.Module, examples: Examples, loss: Loss, outputs: int = 1) -> bool:
    """Try a copy of the model on two samples; return whether it takes images with the channels last.

    Some networks flatten with `view`, which only the usual layout allows. What fails in both raises, and so does a
    model with fewer outputs than there must be.
    """
    some = Examples(examples.x[:2], examples.y[:2], examples.scaling)
    tried = copy.deepcopy(model)
    evaluate(tried, some, loss)
    scores = next(tried(x) for x, _ in in_order(tried, some)).detach() if loss.hits else None
    if scores is not None and _are_probabilities(scores):
        warn(
            "the model gives probabilities, as after a softmax, and the loss takes scores: leave out its last softmax, "
            "or it learns slowly"
        )
    if scores is not None and (given := scores.shape[1]) < outputs:
        raise DataError(
            f"it gives {given} scores, and there are {outputs} classes: give its last layer {outputs} outputs"
        )
    if examples.x.dim() != 4 or all(p.dim() != 4 for p in model.parameters()):
        return False
    try:
        evaluate(channels_last_layout(copy.deepcopy(model)), some, loss, channels_last=True)
    except RuntimeError:
        return False
    return True


def _are_probabilities(scores: Tensor) -> bool:
    """Return whether no score is below 0 and every sample's add up to 1."""
    sums = scores.sum(1)
    return scores.dim() == 2 and bool((scores >= 0).all() and (sums - 1).abs().max() < 1e-4)


@functools.cache
def tune_allocator() -> None:
    """Keep freed memory in the process: else every step returns it and faults the pages in again.

    glibc only; same values, fewer page faults. `INTARSIA_ALLOCATOR=system` leaves it as it is.
    """
    if (libc := _glibc()) is not None:
        trim_threshold, mmap_threshold = -1, -3
        libc.mallopt(mmap_threshold, 1 << 30)
        libc.mallopt(trim_threshold, (1 << 31) - 1)


def return_freed_memory() -> None:
    """Give memory that is free back to the system: forked workers would use it too, and copy it page by page."""
    if (libc := _glibc()) is not None:
        libc.malloc_trim(0)


def _glibc() -> ctypes.CDLL | None:
    """Return the library whose allocator can be told how to behave, where it is there and may be told."""
    if not sys.platform.startswith("linux") or os.environ.get("INTARSIA_ALLOCATOR") == "system":
        return None
    libc = ctypes.CDLL(None)
    return libc if hasattr(libc, "mallopt") and hasattr(libc, "gnu_get_libc_version") else None
