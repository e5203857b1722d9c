"""Batched clients: chains of linear layers of several clients, trained side by side by hand-written steps.

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

from intarsia.blocks import DataError
from intarsia.data import Examples
from intarsia.training.losses import Loss
from intarsia.training.objectives import Objective, Proximal
from intarsia.training.settings import Training
from intarsia.training.solver import Score, Trained, inputs_of, step_weight

LINE = 16
"""Numbers in a cache line: where a matrix begins within one can change the last bit of a product."""
STACK = 1 << 21
"""Numbers that the models of a stack may hold: about what the caches of a core do."""
MOST = 64
"""Clients that a stack may have."""
TILE = 64
"""Rows that samples are scored in, at most."""
FEW = 256
"""Samples up to which a client is scored together with others: larger ones gain nothing by it."""
STAGE = 1 << 20
"""Numbers of inputs that are gathered at once."""


@dataclass(frozen=True)
class Chain:
    """The linear layers of a model by their names, first to last: weight and bias of each; ReLU between them."""

    names: tuple[tuple[str, str], ...]
    numbers: int
    """How many numbers the padded matrices hold."""

    @classmethod
    def of(cls, model: nn.Module) -> Chain | None:
        """Return the chain that a model is: flatten, then linear layers with ReLU between; None for any other."""
        if type(model) is not nn.Sequential or any(_odd(module) for module in model.modules()):
            return None
        kinds = [type(module) for module in model]
        if not kinds or kinds != [nn.Flatten, *[nn.Linear, nn.ReLU] * (len(kinds) // 2 - 1), nn.Linear]:
            return None
        layers = {name: module for name, module in model.named_children() if isinstance(module, nn.Linear)}
        standing_once = len(layers) == kinds.count(nn.Linear)
        if not standing_once or len({id(weight) for weight in model.parameters()}) != 2 * len(layers):
            return None
        numbers = sum(padded(layer.in_features + 1) * padded(layer.out_features) for layer in layers.values())
        return cls(tuple((f"{name}.weight", f"{name}.bias") for name in layers), numbers)

    @property
    def most(self) -> int:
        """How many clients a stack of such models has at most: the table, by the model's size."""
        return max(1, min(MOST, STACK // self.numbers))


def _odd(module: nn.Module) -> bool:
    """Return whether a module does more than its kind says, or not in single precision on the CPU."""
    hooks = (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks)
    plain = all(p.dtype == torch.float32 and p.device.type == "cpu" for p in module.parameters())
    flat = not isinstance(module, nn.Flatten) or (module.start_dim, module.end_dim) == (1, -1)
    biased = not isinstance(module, nn.Linear) or module.bias is not None
    return any(map(len, hooks)) or not (plain and flat and biased)


def padded(length: int) -> int:
    """Return the length in whole cache lines."""
    return math.ceil(length / LINE) * LINE


def takes(model: nn.Module, training: Training, objective: Objective, loss: Loss) -> Chain | None:
    """Return the chain of a model that is trained in this way: by SGD, on cross-entropy, plain or proximal."""
    usual = training.optimizer == "sgd" and loss.function is functional.cross_entropy
    if training.plain or not training.batched or not usual or type(objective) not in (Objective, Proximal):
        return None
    return Chain.of(model)


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
class Rule:
    """How all clients of a stack train."""

    training: Training
    lr: float
    objective: Objective
    epochs: int


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
def score_together(chain: Chain, weights: Mapping[str, Tensor], clients: Sequence[Examples]) -> list[Score]:
    """Score one model on the data of several clients at once; every client's samples fill tiles of their own."""
    layers = [(_stacked([weights[weight]]), _stacked([weights[bias]])) for weight, bias in chain.names]
    outputs = len(weights[chain.names[-1][1]])
    losses: list[list[float]] = [[] for _ in clients]
    hits = [0] * len(clients)
    for tile in _tiles(clients, weights[chain.names[0][0]].shape[1]):
        found = _outputs(layers, tile.x)[:, :, :outputs]
        for i, (loss, hit) in zip(tile.clients, _scored(found, tile.y, tile.there), strict=True):
            losses[i] += loss
            hits[i] += hit
    return [Score(len(own), hits[i], math.fsum(losses[i]) / len(own)) for i, own in enumerate(clients)]


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
        x[place, :count, :inputs] = _flat(own, picked, inputs)
        y[place, :count, 0] = own.y[start : start + rows]
        there[place, :count] = 1
    return _Tiles([i for i, _ in pieces], x, y, there)


def _outputs(layers: Sequence[tuple[Tensor, Tensor]], x: Tensor) -> Tensor:
    """Return the outputs of one model for a stack of tiles."""
    for i, (weight, bias) in enumerate(layers):
        tiles = len(x)
        x = torch.baddbmm(bias.expand(tiles, -1, -1), x, weight.transpose(1, 2).expand(tiles, -1, -1))
        x = x.relu_() if i + 1 < len(layers) else x
    return x


class _Parameter:
    """One parameter of all clients: a stack of padded matrices, and what its descent needs beside them."""

    def __init__(self, name: str, lessons: Sequence[Lesson], rule: Rule) -> None:
        self.name, self.rule = name, rule
        self.trained = name in lessons[0].trained
        self.values = _stacked([lesson.weights[name] for lesson in lessons])
        pulled = rule.objective.pull > 0 and name in lessons[0].received
        self.start = _stacked([lesson.received[name] for lesson in lessons]) if pulled else None
        self.pull = rule.objective.pull if pulled else 0.0
        self.velocity = torch.zeros_like(self.values) if rule.training.momentum and self.trained else None

    def descend(self, active: int, left: Tensor, right: Tensor) -> None:
        """Take a step of the first clients of the stack; left @ right is the gradient."""
        lr, shrink = self.rule.lr, self.rule.training.weight_decay + self.pull
        values = self.values[:active]
        start = None if self.start is None else self.start[:active]
        if self.velocity is None:
            values.baddbmm_(left, right, beta=1 - lr * shrink, alpha=-lr)
            if start is not None:
                values.add_(start, alpha=lr * self.pull)
            return
        velocity = self.velocity[:active]
        velocity.baddbmm_(left, right, beta=self.rule.training.momentum)
        if shrink:
            velocity.add_(values, alpha=shrink)
        if start is not None:
            velocity.add_(start, alpha=-self.pull)
        values.add_(velocity, alpha=-lr)

    def of(self, i: int, shape: torch.Size) -> Tensor:
        """Return one client's values, without what they were padded with."""
        return self.values[i, : shape[0], : shape[1]] if len(shape) == 2 else self.values[i, 0, : shape[0]]


class _Stack:
    """Clients side by side, those with most steps first."""

    def __init__(self, chain: Chain, lessons: Sequence[Lesson], orders: Sequence[_Order], rule: Rule) -> None:
        self.lessons, self.orders, self.rule = lessons, orders, rule
        self.layers = [
            (_Parameter(weight, lessons, rule), _Parameter(bias, lessons, rule))
            for weight, bias in chain.names
        ]
        first = (i for i, layer in enumerate(self.layers) if any(p.trained for p in layer))
        self.first = next(first, len(self.layers))
        self.outputs = len(lessons[0].weights[chain.names[-1][1]])
        self.feed = _Feed(lessons, orders, lessons[0].weights[chain.names[0][0]].shape[1])
        rows = self.feed.rows
        self.ones = torch.ones(1, 1, 1).expand(len(lessons), 1, rows)
        self.slope = torch.zeros(len(lessons), rows, self.layers[-1][1].values.shape[2])
        self.minus = torch.full((1, 1, 1), -1.0).expand(len(lessons), rows, 1)

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
        return [self._learned(i, math.fsum(losses[i]), hits[i]) for i in range(len(self.lessons))]

    def _step(self, active: int, x: Tensor, y: Tensor, parts: Tensor) -> Tensor:
        """Take one step of the first clients; return the outputs before it."""
        seen = self._forward(active, x)
        scores = seen.pop()[:, :, : self.outputs]
        slope = self.slope[:active]
        slope[:, :, : self.outputs] = functional.softmax(scores, 2)
        self._backward(active, seen, slope.scatter_add_(2, y, self.minus[:active]).mul_(parts))
        return scores

    def _forward(self, active: int, x: Tensor) -> list[Tensor]:
        """Return the inputs of every layer, and the outputs of the last."""
        seen = [x]
        for weight, bias in self.layers:
            out = torch.baddbmm(bias.values[:active], seen[-1], weight.values[:active].transpose(1, 2))
            seen.append(out if weight is self.layers[-1][0] else out.relu_())
        return seen

    def _backward(self, active: int, seen: list[Tensor], slope: Tensor) -> None:
        """Go back through the layers, down to the first that is trained; change each on the way."""
        for i in range(len(self.layers) - 1, self.first - 1, -1):
            weight, bias = self.layers[i]
            below = torch.bmm(slope, weight.values[:active]) if i > self.first else None
            if weight.trained:
                weight.descend(active, slope.transpose(1, 2), seen[i])
            if bias.trained:
                bias.descend(active, self.ones[:active], slope)
            if below is not None:
                slope = torch.ops.aten.threshold_backward(below, seen[i], 0)

    def _learned(self, i: int, loss: float, hits: int) -> Learned:
        rule, sizes, before = self.rule, self.orders[i].sizes, self.lessons[i].weights
        n, steps = sum(sizes), len(sizes)
        weight = step_weight(steps, rule.training, rule.lr, rule.objective.pull)
        trained = [parameter for layer in self.layers for parameter in layer if parameter.trained]
        weights = {p.name: p.of(i, before[p.name].shape) for p in trained}
        return Learned(weights, Trained(Score(n, hits, loss / max(1, n)), steps, weight))


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
                self.x[i, :count, : self.inputs] = _flat(lesson.examples, picked, self.inputs)
                self.y[i, :count, 0] = lesson.examples.y.index_select(0, picked)


def _flat(examples: Examples, picked: Tensor, inputs: int) -> Tensor:
    """Return the inputs of some samples as rows; the padding must not hide that there are too many."""
    x = inputs_of(examples, picked).flatten(1)
    if x.shape[1] != inputs:
        raise DataError(f"the model takes {inputs} inputs, a sample has {x.shape[1]}")
    return x


def _scored(scores: Tensor, y: Tensor, parts: Tensor) -> list[tuple[list[float], int]]:
    """Return every client's losses, zero where there is no sample, and its hits."""
    there = parts > 0
    losses = functional.log_softmax(scores, 2).gather(2, y).neg_().masked_fill_(~there, 0)
    hits = (scores.argmax(2, keepdim=True) == y).logical_and_(there).sum((1, 2))
    return list(zip(losses.squeeze(2).tolist(), hits.tolist(), strict=True))


def _stacked(tensors: Sequence[Tensor]) -> Tensor:
    """Return matrices (a vector is one row) one upon the other, padded with zeros."""
    rows, columns = (1, *tensors[0].shape)[-2:]
    height = padded(rows) if tensors[0].dim() == 2 else 1
    stack = torch.zeros(len(tensors), height, padded(columns))
    for i, tensor in enumerate(tensors):
        stack[i, :rows, :columns] = tensor.detach()
    return stack
