"""A client's samples in batches, on the device of its model."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from intarsia.data import Examples, Scaling
from intarsia.training.objectives import Batch, Situation

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
