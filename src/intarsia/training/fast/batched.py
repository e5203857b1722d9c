"""Batched clients: small models of several clients, trained side by side by hand-written steps.

A step multiplies stacks of matrices, one a client, and folds the descent into the backward pass: no graph, no
gradients in memory. Every matrix is padded with zeros to whole cache lines, every batch to the same number of
rows, and a client that has taken its last step leaves the stack. So a client's matrices have the same shapes
and lie alike in memory whoever is beside it, and its bits depend on nobody else: a client alone is a stack of
one. Scores are made in the same way, by steps that change nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from intarsia.data import Examples
from intarsia.training.descent import Descent, Score, Trained, inputs_of
from intarsia.training.fast.chain import Chain, power_of_two, rows_of
from intarsia.training.fast.stacked import Form, Parameter, Weights, padded

TILE = 64
"""Rows that samples are scored in, at most."""
STAGE = 1 << 20
"""Numbers of inputs that are gathered at once."""


@dataclass(frozen=True)
class StackMember:
    """What one client of a stack trains, and on what."""

    weights: Mapping[str, Tensor]
    """All parameters by name; only read."""
    trained: frozenset[str]
    received: Mapping[str, Tensor]
    """The shared parameters as they were received, for an objective that is pulled towards them."""
    examples: Examples
    chance: torch.Generator


@dataclass(frozen=True)
class TrainedWeights:
    """What training made of one client's weights, by name; and how it went."""

    weights: Mapping[str, Tensor]
    trained: Trained


def train_together(chain: Chain, members: Sequence[StackMember], descent: Descent) -> list[TrainedWeights]:
    """Train clients side by side whose batches have the same number of rows."""
    orders = [_Order.drawn(member, descent) for member in members]
    places = _longest_first(orders)
    sorted_members = [members[i] for i in places]
    parameters = {n: _parameter(n, form, sorted_members, descent) for n, form in chain.parameters.items()}
    stack = _Stack(chain, parameters, [m.examples for m in sorted_members], [orders[i] for i in places])
    scores = stack.run()
    values = {n: p.form.unstack(p.values) for n, p in parameters.items() if p.trained}
    made = {}
    for place, (i, score) in enumerate(zip(places, scores, strict=True)):
        steps = len(orders[i].sizes)
        trained = Trained(score, steps, descent.step_weight(steps))
        made[i] = TrainedWeights({n: own[place] for n, own in values.items()}, trained)
    return [made[i] for i in range(len(members))]


def _parameter(name: str, form: Form, members: Sequence[StackMember], descent: Descent) -> Parameter:
    tensors = [member.weights[name] for member in members]
    pulled = descent.objective.pull > 0 and name in members[0].received
    received = [member.received[name] for member in members] if pulled else None
    return Parameter(form, tensors, descent, name in members[0].trained, received)


@torch.inference_mode()
def score_together(
    chain: Chain,
    weights: Mapping[str, Tensor],
    clients: Sequence[Examples],
    said: Sequence[list[Tensor]] | None = None,
) -> list[Score]:
    """Score one model on the data of several clients at once; every client's samples fill tiles of their own.

    The outputs for each client's samples, in their order, are added to its list in `said`.
    """
    if clients:
        chain.inputs(clients)  # all of them fit
    shared = {n: Weights(form, form.stack([weights[n]])) for n, form in chain.parameters.items()}
    by_rows: dict[int, list[int]] = {}
    for i, own in enumerate(clients):
        by_rows.setdefault(min(TILE, power_of_two(len(own))), []).append(i)
    scores: dict[int, Score] = {}
    for rows, alike in by_rows.items():
        orders = [_Order.as_it_lies(len(clients[i]), rows) for i in alike]
        places = _longest_first(orders)
        stack = _Stack(chain, shared, [clients[alike[k]] for k in places], [orders[k] for k in places])
        kept = None if said is None else [said[alike[k]] for k in places]
        scores.update(zip((alike[k] for k in places), stack.run(kept), strict=True))
    return [scores[i] for i in range(len(clients))]


@dataclass(frozen=True)
class _Order:
    """In which order a client's samples come: row numbers, batch after batch, and the sizes of the batches."""

    picked: Tensor
    """As many numbers a batch as batches have rows; what is left over repeats row 0 and does not count."""
    sizes: list[int]

    @classmethod
    def drawn(cls, member: StackMember, descent: Descent) -> _Order:
        """Draw the order of every epoch, as the sequential solver does."""
        n, size = len(member.examples), descent.training.batch_size
        sizes = _sizes(n, size)
        picked = torch.zeros(descent.epochs, len(sizes) * rows_of(n, descent.training), dtype=torch.long)
        for epoch in range(descent.epochs):
            picked[epoch, :n] = torch.randperm(n, generator=member.chance)
        return cls(picked.flatten(), sizes * descent.epochs)

    @classmethod
    def as_it_lies(cls, n: int, rows: int) -> _Order:
        """Return the order of samples that are only scored, in tiles of some rows."""
        sizes = _sizes(n, rows)
        picked = torch.zeros(len(sizes) * rows, dtype=torch.long)
        picked[:n] = torch.arange(n)
        return cls(picked, sizes)


def _sizes(n: int, size: int) -> list[int]:
    return [min(size, n - start) for start in range(0, n, size)]


def _longest_first(orders: Sequence[_Order]) -> list[int]:
    return sorted(range(len(orders)), key=lambda i: -len(orders[i].sizes))


class _Stack:
    """Clients side by side, those with most steps first."""

    def __init__(
        self,
        chain: Chain,
        parameters: Mapping[str, Weights],
        clients: Sequence[Examples],
        orders: Sequence[_Order],
    ) -> None:
        self.outputs = chain.outputs
        self.feed = _Feed(clients, orders, chain.inputs(clients))
        self.layers = [
            kind([parameters[name] for name in forms], self.feed.inputs) for kind, forms in chain.layers
        ]
        self.first = next((i for i, layer in enumerate(self.layers) if layer.trained), len(self.layers))
        rows = self.feed.rows
        self.slope = torch.zeros(len(clients), rows, padded(self.outputs))
        self.minus = torch.full((1, 1, 1), -1.0).expand(len(clients), rows, 1)

    @torch.no_grad()
    def run(self, said: Sequence[list[Tensor]] | None = None) -> list[Score]:
        """Take every client's steps; return the scores on the way (and add the outputs to `said`)."""
        losses: list[list[float]] = [[] for _ in self.feed.orders]
        hits = [0] * len(losses)
        for x, y, parts, active in self.feed.stages():
            scores = torch.zeros(*y.shape[:2], self.outputs)
            rows = self.feed.rows
            for step, clients in enumerate(active):
                at = slice(step * rows, (step + 1) * rows)
                scores[:clients, at] = self._step(
                    clients, x[:clients, at], y[:clients, at], parts[:clients, at]
                )
            for i, (loss, hit) in enumerate(_scored(scores, y, parts)):
                losses[i] += loss
                hits[i] += hit
            for i, own in enumerate(said or ()):
                own.append(scores[i, parts[i, :, 0] > 0])
        counts = [sum(order.sizes) for order in self.feed.orders]
        return [Score(n, hits[i], math.fsum(losses[i]) / max(1, n)) for i, n in enumerate(counts)]

    def _step(self, active: int, x: Tensor, y: Tensor, parts: Tensor) -> Tensor:
        """Take one step of the first clients, where something is trained; return the outputs before it."""
        for layer in self.layers:
            x = layer.forward(active, x)
        scores = x[:, :, : self.outputs]
        if self.first < len(self.layers):
            slope = self.slope[:active]
            slope[:, :, : self.outputs] = functional.softmax(scores, 2)
            self._backward(active, slope.scatter_add_(2, y, self.minus[:active]).mul_(parts))
        return scores

    def _backward(self, active: int, slope: Tensor) -> None:
        """Go back through the layers, down to the first that is trained; change each on the way."""
        for i in range(len(self.layers) - 1, self.first - 1, -1):
            slope = self.layers[i].backward(active, slope, i > self.first)


class _Feed:
    """The batches of all clients, some steps at a time."""

    def __init__(self, clients: Sequence[Examples], orders: Sequence[_Order], inputs: int) -> None:
        self.clients, self.orders, self.inputs = clients, orders, inputs
        width = padded(inputs)
        self.steps = len(orders[0].sizes)
        self.rows = len(orders[0].picked) // max(1, self.steps)
        self.at_once = max(1, min(self.steps, STAGE // (len(clients) * self.rows * width)))
        self.x = torch.zeros(len(clients), self.at_once * self.rows, width)
        self.y = torch.zeros(len(clients), self.at_once * self.rows, 1, dtype=torch.long)

    def stages(self) -> Iterator[tuple[Tensor, Tensor, Tensor, list[int]]]:
        """Yield inputs, labels, each sample's part in its batch (0: no sample), and how many clients take each step."""
        for start in range(0, self.steps, self.at_once):
            sizes = [order.sizes[start : start + self.at_once] for order in self.orders]
            longest = len(sizes[0])
            many = torch.tensor([own + [0] * (longest - len(own)) for own in sizes]).unsqueeze(2)
            parts = (torch.arange(self.rows) < many) / many.clamp(min=1)
            self._gather(slice(start * self.rows, (start + longest) * self.rows))
            active = [sum(len(own) > step for own in sizes) for step in range(longest)]
            yield self.x, self.y[:, : longest * self.rows], parts.flatten(1).unsqueeze(2), active

    def _gather(self, at: slice) -> None:
        for i, (examples, order) in enumerate(zip(self.clients, self.orders, strict=True)):
            picked = order.picked[at]
            count = picked.shape[0]
            if count:
                self.x[i, :count, : self.inputs] = inputs_of(examples, picked).flatten(1)
                self.y[i, :count, 0] = examples.y.index_select(0, picked)


def _scored(scores: Tensor, y: Tensor, parts: Tensor) -> list[tuple[list[float], int]]:
    """Return every client's losses, zero where there is no sample, and its hits."""
    there = parts > 0
    losses = functional.log_softmax(scores, 2).gather(2, y).neg_().masked_fill_(~there, 0)
    hits = (scores.argmax(2, keepdim=True) == y).logical_and_(there).sum((1, 2))
    return list(zip(losses.squeeze(2).tolist(), hits.tolist(), strict=True))
