"""Batched clients: small models of several clients, trained side by side by hand-written steps.

A step multiplies stacks of matrices, one a client, and folds the descent into the backward pass: no graph, no
gradients in memory. Every matrix is padded with zeros to whole cache lines, every batch to the same number of
rows, and a client that has taken its last step leaves the stack. So a client's matrices have the same shapes
and lie alike in memory whoever is beside it, and its bits depend on nobody else: a client alone is a stack of
one. `STACK` and `takes` are the table that decides what is trained in this way, from model and settings alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from intarsia.core import DataError
from intarsia.data import Examples
from intarsia.models import LastStep
from intarsia.training.fast.folded import hooked
from intarsia.training.fast.stacked import (
    KINDS,
    LSTM,
    Form,
    Layer,
    Linear,
    Parameter,
    ReLU,
    Rule,
    Tanh,
    Weights,
    padded,
)
from intarsia.training.losses import Loss
from intarsia.training.objectives import Objective, Proximal
from intarsia.training.settings import Training
from intarsia.training.solver import Score, Trained, inputs_of, step_weight

STACK = 1 << 21
"""Numbers that the models of a stack may hold: about what the caches of a core do."""
MOST = 64
"""Clients that a stack may have."""
SERIES = 16
"""Clients that a stack of recurrent models may have: what they remember of every step fills the caches sooner."""
SMALL = 256
"""Rows times units of a layer up to which batched LSTMs are faster than torch's own."""
TILE = 64
"""Rows that samples are scored in, at most."""
FEW = 256
"""Samples up to which a client is scored together with others: larger ones gain nothing by it."""
STAGE = 1 << 20
"""Numbers of inputs that are gathered at once."""


@dataclass(frozen=True)
class Chain:
    """The layers of a model, first to last: kind of each, and its parameters by name with the form they have."""

    layers: tuple[tuple[type[Layer], Mapping[str, Form]], ...]

    @classmethod
    def of(cls, model: nn.Module) -> Chain | None:
        """Return the chain that a model is; None for any other.

        Flatten or an LSTM's last step, then linear layers with ReLU or tanh between.
        """
        if type(model) is not nn.Sequential or any(_odd(module) for module in model.modules()):
            return None
        kinds = [KINDS.get(type(module)) for module in model]
        if not _in_order(kinds) or type(model[0]) not in (nn.Flatten, LastStep):
            return None
        layers = tuple(_described(n, m) for n, m in model._modules.items() if type(m) in KINDS)
        many = sum(len(forms) for _, forms in layers)
        return cls(layers) if len({id(weight) for weight in model.parameters()}) == many else None

    @property
    def first(self) -> Form:
        """The form of the weights that the samples meet."""
        return next(iter(self.layers[0][1].values()))

    @property
    def outputs(self) -> int:
        """How many numbers the model gives."""
        return next(iter(self.layers[-1][1].values())).shape[0]

    @property
    def recurrent(self) -> bool:
        """Whether samples are series."""
        return self.layers[0][0] is LSTM

    @property
    def most(self) -> int:
        """How many clients a stack of such models has at most: the table, by the model's size."""
        numbers = sum(form.numbers for _, forms in self.layers for form in forms.values())
        return max(1, min(SERIES if self.recurrent else MOST, STACK // numbers))

    def inputs(self, examples: Examples) -> int:
        """Return how many numbers a sample has; the padding must not hide that there are too many."""
        shape, wanted = examples.x.shape[1:], self.first.shape[1]
        if self.recurrent and (len(shape) != 2 or shape[1] != wanted):
            raise DataError(f"the model takes (steps, {wanted}) inputs, a sample has {tuple(shape)}")
        if not self.recurrent and shape.numel() != wanted:
            raise DataError(f"the model takes {wanted} inputs, a sample has {shape.numel()}")
        return shape.numel()


def _in_order(kinds: Sequence[type[Layer] | None]) -> bool:
    """Return whether linear layers follow the first module, with something between them that has no parameters."""
    linear, between = kinds[1::2], kinds[2::2]
    bent = all(kind in (ReLU, Tanh) for kind in between)
    return bool(linear) and len(linear) == len(between) + 1 and bent and all(k is Linear for k in linear)


def _described(name: str, module: nn.Module | None) -> tuple[type[Layer], dict[str, Form]]:
    assert module is not None
    kind = KINDS[type(module)]
    shapes = {weight: tuple(module.get_parameter(weight).shape) for weight in kind.weights}
    return kind, {f"{name}.{weight}": Form(shape, kind.order) for weight, shape in shapes.items()}


def _odd(module: nn.Module) -> bool:
    """Return whether a module does more than its kind says, or not in single precision on the CPU."""
    plain = all(p.dtype == torch.float32 and p.device.type == "cpu" for p in module.parameters())
    flat = not isinstance(module, nn.Flatten) or (module.start_dim, module.end_dim) == (1, -1)
    kind = KINDS.get(type(module))
    return hooked(module) or not (plain and flat and (kind is None or kind.takes(module)))


def takes(model: nn.Module, training: Training, objective: Objective, loss: Loss) -> Chain | None:
    """Return the chain of a model that is trained in this way: on cross-entropy, plain or proximal."""
    usual = loss.function is functional.cross_entropy
    if training.plain or not training.batched or not usual or type(objective) not in (Objective, Proximal):
        return None
    chain = Chain.of(model)
    if chain is None or not chain.recurrent:
        return chain
    small = training.batch_size * padded(chain.first.shape[0] // 4) <= SMALL
    return chain if small and training.batched == "lstm" else None


def rows_of(samples: int, training: Training) -> int:
    """Return how many rows a client's batches have, empty ones among them: the batch size, or hardly its samples."""
    return min(training.batch_size, _power(samples))


def _power(count: int) -> int:
    """Return the least power of two that is no less."""
    return 1 << (count - 1).bit_length()


@dataclass(frozen=True)
class Lesson:
    """What one client trains, and on what."""

    weights: Mapping[str, Tensor]
    """All parameters by name; only read."""
    trained: frozenset[str]
    received: Mapping[str, Tensor]
    """The shared parameters as they were received, for the proximal objective."""
    examples: Examples
    chance: torch.Generator


@dataclass(frozen=True)
class Learned:
    """What training made of one client's weights, by name; and how it went."""

    weights: Mapping[str, Tensor]
    trained: Trained


def train_together(chain: Chain, lessons: Sequence[Lesson], rule: Rule) -> list[Learned]:
    """Train clients side by side whose batches have the same number of rows."""
    orders = [_Order.of(lesson, rule) for lesson in lessons]
    longest = sorted(range(len(lessons)), key=lambda i: -len(orders[i].sizes))
    stack = _Stack(chain, [lessons[i] for i in longest], [orders[i] for i in longest], rule)
    learned = dict(zip(longest, stack.train(), strict=True))
    return [learned[i] for i in range(len(lessons))]


@dataclass(frozen=True)
class _Order:
    """In which order a client sees its samples: row numbers, batch after batch, and the sizes of the batches."""

    picked: Tensor
    """As many numbers a batch as batches have rows; what is left over repeats row 0 and does not count."""
    sizes: list[int]

    @classmethod
    def of(cls, lesson: Lesson, rule: Rule) -> _Order:
        """Draw the order of every epoch, as the sequential solver does."""
        n, size = len(lesson.examples), rule.training.batch_size
        sizes = [min(size, n - start) for start in range(0, n, size)]
        picked = torch.zeros(rule.epochs, len(sizes) * rows_of(n, rule.training), dtype=torch.long)
        for epoch in range(rule.epochs):
            picked[epoch, :n] = torch.randperm(n, generator=lesson.chance)
        return cls(picked.flatten(), sizes * rule.epochs)


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
    if not clients:
        return []
    inputs = _common(chain, clients)
    layers = [
        kind([Weights(form, form.stack([weights[name]])) for name, form in forms.items()], inputs)
        for kind, forms in chain.layers
    ]
    losses: list[list[float]] = [[] for _ in clients]
    hits = [0] * len(clients)
    for tile in _tiles(clients, inputs):
        found = _outputs(layers, tile.x)[:, :, : chain.outputs]
        for i, (loss, hit) in zip(tile.clients, _scored(found, tile.y, tile.there), strict=True):
            losses[i] += loss
            hits[i] += hit
        for place, i in enumerate(tile.clients if said is not None else ()):
            said[i].append(found[place][tile.there[place, :, 0] > 0])  # type: ignore[index]
    return [Score(len(own), hits[i], math.fsum(losses[i]) / len(own)) for i, own in enumerate(clients)]


def _common(chain: Chain, clients: Sequence[Examples]) -> int:
    """Return how many numbers a sample has: as many with every client."""
    inputs = {chain.inputs(own) for own in clients}
    if len(inputs) > 1:
        raise DataError(f"samples have {sorted(inputs)} numbers: they cannot lie side by side")
    return inputs.pop()


@dataclass(frozen=True)
class _Tiles:
    """Samples in tiles of some rows: whose each is, inputs, labels, and whether there is a sample (else 0)."""

    clients: list[int]
    x: Tensor
    y: Tensor
    there: Tensor


def _tiles(clients: Sequence[Examples], inputs: int) -> Iterator[_Tiles]:
    """Yield all samples in tiles of the same number of rows, as many as are gathered at once."""
    pieces: dict[int, list[tuple[int, int]]] = {}
    for i, own in enumerate(clients):
        rows = min(TILE, _power(len(own)))
        pieces.setdefault(rows, []).extend((i, start) for start in range(0, len(own), rows))
    for rows, all_of_them in pieces.items():
        at_once = max(1, STAGE // (rows * padded(inputs)))
        for start in range(0, len(all_of_them), at_once):
            yield _tiled(clients, all_of_them[start : start + at_once], rows, inputs)


def _tiled(clients: Sequence[Examples], pieces: list[tuple[int, int]], rows: int, inputs: int) -> _Tiles:
    x = torch.zeros(len(pieces), rows, padded(inputs))
    y = torch.zeros(len(pieces), rows, 1, dtype=torch.long)
    there = torch.zeros(len(pieces), rows, 1)
    for place, (i, start) in enumerate(pieces):
        own = clients[i]
        picked = torch.arange(start, min(start + rows, len(own)))
        count = len(picked)
        x[place, :count, :inputs] = inputs_of(own, picked).flatten(1)
        y[place, :count, 0] = own.y[start : start + rows]
        there[place, :count] = 1
    return _Tiles([i for i, _ in pieces], x, y, there)


def _outputs(layers: Sequence[Layer], x: Tensor) -> Tensor:
    """Return the outputs for a stack of inputs, one matrix a client or tile."""
    for layer in layers:
        x = layer.forward(len(x), x)
    return x


class _Stack:
    """Clients side by side, those with most steps first."""

    def __init__(self, chain: Chain, lessons: Sequence[Lesson], orders: Sequence[_Order], rule: Rule) -> None:
        self.lessons, self.orders, self.rule = lessons, orders, rule
        self.outputs = chain.outputs
        self.feed = _Feed(lessons, orders, _common(chain, [lesson.examples for lesson in lessons]))
        self.parameters = {
            name: self._parameter(name, form) for _, forms in chain.layers for name, form in forms.items()
        }
        self.layers = [
            kind([self.parameters[name] for name in forms], self.feed.inputs) for kind, forms in chain.layers
        ]
        first = (i for i, layer in enumerate(self.layers) if layer.trained)
        self.first = next(first, len(self.layers))
        rows = self.feed.rows
        self.slope = torch.zeros(len(lessons), rows, padded(self.outputs))
        self.minus = torch.full((1, 1, 1), -1.0).expand(len(lessons), rows, 1)

    def _parameter(self, name: str, form: Form) -> Parameter:
        tensors = [lesson.weights[name] for lesson in self.lessons]
        pulled = self.rule.objective.pull > 0 and name in self.lessons[0].received
        received = [lesson.received[name] for lesson in self.lessons] if pulled else None
        return Parameter(form, tensors, self.rule, name in self.lessons[0].trained, received)

    @torch.no_grad()
    def train(self) -> list[Learned]:
        """Take every client's steps."""
        losses: list[list[float]] = [[] for _ in self.lessons]
        hits = [0] * len(self.lessons)
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
        values = {n: p.form.unstack(p.values) for n, p in self.parameters.items() if p.trained}
        return [
            Learned({n: own[i] for n, own in values.items()}, self._trained(i, math.fsum(losses[i]), hits[i]))
            for i in range(len(self.lessons))
        ]

    def _step(self, active: int, x: Tensor, y: Tensor, parts: Tensor) -> Tensor:
        """Take one step of the first clients; return the outputs before it."""
        scores = _outputs(self.layers, x)[:, :, : self.outputs]
        slope = self.slope[:active]
        slope[:, :, : self.outputs] = functional.softmax(scores, 2)
        self._backward(active, slope.scatter_add_(2, y, self.minus[:active]).mul_(parts))
        return scores

    def _backward(self, active: int, slope: Tensor) -> None:
        """Go back through the layers, down to the first that is trained; change each on the way."""
        for i in range(len(self.layers) - 1, self.first - 1, -1):
            slope = self.layers[i].backward(active, slope, i > self.first)

    def _trained(self, i: int, loss: float, hits: int) -> Trained:
        n, steps = sum(self.orders[i].sizes), len(self.orders[i].sizes)
        weight = step_weight(steps, self.rule.training, self.rule.lr, self.rule.objective.pull)
        return Trained(Score(n, hits, loss / max(1, n)), steps, weight)


class _Feed:
    """The batches of all clients, some steps at a time."""

    def __init__(self, lessons: Sequence[Lesson], orders: Sequence[_Order], inputs: int) -> None:
        self.lessons, self.orders, self.inputs = lessons, orders, inputs
        width = padded(inputs)
        self.steps = len(orders[0].sizes)
        self.rows = len(orders[0].picked) // max(1, self.steps)
        self.at_once = max(1, min(self.steps, STAGE // (len(lessons) * self.rows * width)))
        self.x = torch.zeros(len(lessons), self.at_once * self.rows, width)
        self.y = torch.zeros(len(lessons), self.at_once * self.rows, 1, dtype=torch.long)

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
        for i, (lesson, order) in enumerate(zip(self.lessons, self.orders, strict=True)):
            picked = order.picked[at]
            count = picked.shape[0]
            if count:
                self.x[i, :count, : self.inputs] = inputs_of(lesson.examples, picked).flatten(1)
                self.y[i, :count, 0] = lesson.examples.y.index_select(0, picked)


def _scored(scores: Tensor, y: Tensor, parts: Tensor) -> list[tuple[list[float], int]]:
    """Return every client's losses, zero where there is no sample, and its hits."""
    there = parts > 0
    losses = functional.log_softmax(scores, 2).gather(2, y).neg_().masked_fill_(~there, 0)
    hits = (scores.argmax(2, keepdim=True) == y).logical_and_(there).sum((1, 2))
    return list(zip(losses.squeeze(2).tolist(), hits.tolist(), strict=True))
