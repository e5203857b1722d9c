"""Learning on public samples beside one's own: a batch of them in every step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from intarsia.data import Examples
from intarsia.training import Batch, Extended, LocalClient, Pass, Situation, batches

ENDLESS = 10**9
"""Epochs that no training comes to the end of."""
Distance = Callable[[Batch, Tensor], Tensor]
"""Gives what is minimised, from a batch and the model's outputs for it."""


@dataclass(frozen=True)
class Lesson:
    """Something to learn beside the own samples: a batch in every step, and what is minimised on it."""

    samples: Iterator[Batch]
    value: Distance
    weight: float

    @classmethod
    def of(
        cls, client: LocalClient, samples: Examples, value: Distance, weight: float, purpose: str
    ) -> Lesson:
        """Return a lesson in batches of the usual size, in an order of this client's own, again and again."""
        order, size = client.chance(purpose), client.training.batch_size
        return cls(batches(client.situation, samples, size, ENDLESS, order), value, weight)


@dataclass(frozen=True)
class InPublic(Extended):
    """An objective on the own samples, and beside it, in every step, lessons on others.

    All batches go through the model together, so a norm takes its statistics from all; the score while training is
    about the own samples alone.
    """

    lessons: tuple[Lesson, ...]

    def forward(self, at: Situation, batch: Batch) -> Pass:
        """Pass all batches through the model."""
        others = [next(lesson.samples) for lesson in self.lessons]
        several = [batch.x, *(other.x for other in others)]
        own, *theirs = at.model(torch.cat(several)).split([len(x) for x in several])
        fit = at.loss(own, batch.y)
        value = self.given.value(at, batch, own, fit)
        for lesson, other, outputs in zip(self.lessons, others, theirs, strict=True):
            value = value + lesson.weight * lesson.value(other, outputs)
        return Pass(own, fit, value)
