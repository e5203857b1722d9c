"""What a client was asked, and what its answer may therefore be."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import torch
from torch import nn

from intarsia.blocks import Expected, Number
from intarsia.blocks.expected import SINGLE, Kind
from intarsia.data import ClientInfo
from intarsia.training import Loss, Training

_OUTPUTS: WeakKeyDictionary[nn.Module, dict[tuple[int, ...], tuple[int, ...]]] = WeakKeyDictionary()
"""The shape of what models give for a sample, by input shape: asking a large one takes its time."""
LOOSE = 1000
"""How many times the usual steps a client may take in a local step that does not say how many it takes."""


@dataclass(frozen=True)
class Asked:
    """Who was asked, and all that bounds the answer."""

    client: ClientInfo
    model: nn.Module
    training: Training
    loss: Loss
    public: int | None = None
    """How many public samples there are (None: not known on this side)."""

    @property
    def outputs(self) -> int:
        """How many scores the client's model gives a sample."""
        return self._given[0]

    @property
    def columns(self) -> int:
        """How many numbers the client's model gives a sample, in whatever shape."""
        return math.prod(self._given)

    @property
    def _given(self) -> tuple[int, ...]:
        known = _OUTPUTS.setdefault(self.model, {})
        if self.client.shape not in known:
            known[self.client.shape] = _outputs(self.model, self.client.shape)
        return known[self.client.shape]

    def hits(self, most: int) -> Number:
        """Return how many of so many predictions can be right (-1: nothing is counted)."""
        return Number(0, most, whole=True) if self.loss.hits else Number(-1, -1, whole=True)

    def score(self, least: int, most: int) -> dict[str, Kind]:
        """Return what a score over at least and at most so many samples can be."""
        return {
            "n": Number(least, most, whole=True),
            "correct": self.hits(most),
            "loss": Number(-SINGLE, SINGLE, endless=True),
        }

    def trained(self, times: int = 1) -> dict[str, Kind]:
        """Return what a client can report of its training, if it takes so many times the epochs of the settings."""
        samples, epochs = self.client.train_samples, self.training.epochs * times
        steps = epochs * math.ceil(samples / self.training.batch_size)
        # Momentum lets a gradient count for at most 1 / (1 - momentum) steps.
        weight = steps / (1 - self.training.momentum) * (1 + 1e-9)
        return {
            **self.score(0, epochs * samples),
            "steps": Number(0, steps, whole=True),
            "step_weight": Number(-weight, weight),
        }


@torch.no_grad()
def _outputs(model: nn.Module, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape of what a model gives for a sample, whether its inputs are numbers or tokens."""
    tried = copy.deepcopy(model).eval()
    try:
        return tuple(tried(torch.zeros(2, *shape)).shape[1:])
    except (RuntimeError, TypeError, IndexError):
        return tuple(tried(torch.zeros(2, *shape, dtype=torch.int64)).shape[1:])


def of_training(asked: Asked, **more: Kind) -> Expected:
    """Return what the answer to one round of training is, with values that may be there beside it."""
    return Expected(asked.trained(), more)


def unknown(asked: Asked) -> Expected:
    """Return what the answer of a local step of one's own may be: what it reports of training, and anything plain."""
    return Expected(perhaps=asked.trained(LOOSE), others=True)
