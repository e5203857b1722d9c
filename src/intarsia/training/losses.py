"""What a client's predictions are measured by."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from intarsia.core import DataError, SettingsError


@dataclass(frozen=True)
class Loss:
    """A loss, averaged over samples, and what counts as a hit (none for regression)."""

    name: str
    function: Callable[..., Tensor]
    hits: Callable[[Tensor, Tensor], Tensor] | None

    def __call__(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Return the mean over the batch."""
        return self.function(outputs, y)


def _class_hits(outputs: Tensor, y: Tensor) -> Tensor:
    return torch.eq(outputs.argmax(1), y).sum()


def _mean_square(outputs: Tensor, y: Tensor) -> Tensor:
    """Return the mean square error; one value a sample may come as a vector or as a column, but nothing is spread."""
    if outputs.numel() != y.numel():
        raise DataError(
            f"the model gives {list(outputs.shape[1:])} values a sample, the targets are {list(y.shape[1:])}: "
            "regression needs as many outputs as targets"
        )
    return functional.mse_loss(outputs.reshape(y.shape), y)


LOSSES = {
    "cross_entropy": Loss("cross_entropy", functional.cross_entropy, _class_hits),
    "mse": Loss("mse", _mean_square, None),
}
USUAL = {"classification": "cross_entropy", "regression": "mse"}


def loss_for(name: str, problem: str) -> Loss:
    """Return the named loss; `auto` takes the usual one of the problem."""
    wanted = USUAL[problem] if name == "auto" else name
    if wanted not in LOSSES:
        raise SettingsError(
            f"training.loss: there is no loss '{wanted}'; there are: auto, {', '.join(LOSSES)}"
        )
    return LOSSES[wanted]
