"""What a client's predictions are measured by."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from intarsia.blocks import SettingsError


@dataclass(frozen=True)
class Loss:
    """A loss, averaged or summed over samples, and what counts as a hit (none for regression)."""

    name: str
    function: Callable[..., Tensor]
    hits: Callable[[Tensor, Tensor], Tensor] | None

    def __call__(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Return the mean over the batch."""
        return self.function(outputs, y)

    def total(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Return the sum over the batch of each sample's loss."""
        return self.function(outputs, y) * len(y)


def _class_hits(outputs: Tensor, y: Tensor) -> Tensor:
    return torch.eq(outputs.argmax(1), y).sum()


LOSSES = {
    "cross_entropy": Loss("cross_entropy", functional.cross_entropy, _class_hits),
    "mse": Loss("mse", functional.mse_loss, None),
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
