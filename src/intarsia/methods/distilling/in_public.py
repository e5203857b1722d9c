"""Learning on public samples beside one's own: a batch of them in every step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from intarsia.data import Examples
from intarsia.training import Batch, Extended, LocalClient, Objective, Pass, Situation, batches

ENDLESS = 10**9
"""Epochs that no training comes to the end of."""
Lesson = Callable[[Batch, Tensor], Tensor]
"""Gives what is minimised on public samples, from the model's outputs for them."""


@dataclass(frozen=True)
class InPublic(Extended):
    """An objective on the own samples, and in every step, by a weight, a lesson on a batch of public ones.

    Both batches go through the model together, so a norm takes its statistics from both; the score while training is
    about the own samples alone.
    """

    lesson: Lesson
    public: Iterator[Batch]
    weight: float

    def forward(self, at: Situation, batch: Batch) -> Pass:
        """Pass both batches through the model."""
        public = next(self.public)
        own, theirs = at.model(torch.cat([batch.x, public.x])).split([len(batch.x), len(public.x)])
        fit = at.loss(own, batch.y)
        value = self.given.value(at, batch, own, fit) + self.weight * self.lesson(public, theirs)
        return Pass(own, fit, value)


def in_public(
    client: LocalClient, given: Objective, public: Examples, lesson: Lesson, weight: float
) -> InPublic:
    """Return the objective of one round: public samples in an order of this client's own, again and again."""
    size, order = client.training.batch_size, client.chance("public batches")
    return InPublic(given, lesson, batches(client.situation, public, size, ENDLESS, order), weight)
