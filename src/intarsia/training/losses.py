"""What a client's predictions are measured by."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor
from torch.nn import functional

from intarsia.core import DataError, SettingsError, suggest


@dataclass(frozen=True)
class Loss:
    """A loss, averaged over samples, and what counts as a hit (none for regression)."""

    name: str
    function: Callable[..., Tensor]
    hits: Callable[[Tensor, Tensor], Tensor] | None
    weights: Tensor | None = field(default=None, compare=False)
    """How much a sample of each label counts in training (None: all the same)."""

    def __call__(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Return the mean over the batch, of weighted losses where labels have weights."""
        if self.weights is None:
            return self.function(outputs, y)
        weights = outputs.new_ones(outputs.shape[1])
        weights[: len(self.weights)] = self.weights.to(outputs)
        return functional.cross_entropy(outputs, y, weights, reduction="sum") / y.numel()


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
    if (LOSSES[wanted].hits is None) != (problem == "regression"):
        what = "numbers" if problem == "regression" else "labels"
        raise SettingsError(
            f"training.loss: '{wanted}' does not fit the data, whose targets are {what}: set it to "
            f"'{USUAL[problem]}' or 'auto', or give targets that it fits"
        )
    return LOSSES[wanted]


ClassWeights = str | Mapping[str, float]


def weighted(loss: Loss, rule: ClassWeights, y: Tensor, labels: Sequence[str]) -> Loss:
    """Return a client's loss with the weights of its labels; `y` are those of its training data.

    `balanced`: n / (labels that are there * samples of the label), so that the weights of all samples add up to n.
    """
    if rule == "none" or loss.name != "cross_entropy":
        return loss
    if isinstance(rule, Mapping):
        return replace(loss, weights=torch.tensor([float(rule.get(label, 1.0)) for label in labels]))
    counts = torch.bincount(y.reshape(-1), minlength=len(labels)).double()
    even = len(y.reshape(-1)) / (int((counts > 0).sum()) * counts.clamp(min=1))
    return replace(loss, weights=torch.where(counts > 0, even, 1.0).float())


def check_class_weights(rule: ClassWeights, problems: Mapping[str, Sequence[str]]) -> None:
    """Refuse weights of labels that no task has; `problems` are the labels of each task that predicts any."""
    if rule != "none" and not problems:
        raise SettingsError('training.class_weights: numbers are predicted, no labels: set it to "none"')
    known = [label for labels in problems.values() for label in labels]
    for label in rule if isinstance(rule, Mapping) else ():
        if label not in known:
            raise SettingsError(f"training.class_weights: there is no label '{label}'{suggest(label, known)}")
