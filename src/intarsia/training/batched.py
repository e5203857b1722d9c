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
        if len({id(weight) for weight in model.parameters()}) != 2 * len(layers):
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
    usual = training.optimizer == "sgd" and loss.name == "cross_entropy"
    if not training.batched or not usual or type(objective) not in (Objective, Proximal):
        return None
    return Chain.of(model)


def rows_of(samples: int, training: Training) -> int:
    """Return how many rows a client's batches have, empty ones among them: the batch size, or hardly its samples."""
    return min(training.batch_size, 1 << (samples - 1).bit_length())


@dataclass(frozen=True)
class Lesson:
    """What one client trains, and on what."""

    weights: Mapping[str, Tensor]
    """All parameters by name; changed in place."""
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


def train_together(chain: Chain, lessons: Sequence[Lesson], rule: Rule) -> list[Trained]:
    """Train clients whose batches have the same number of rows side by side, in place."""
    rows = rows_of(len(lessons[0].examples), rule.training)
    orders = [_Order.of(lesson, rows, rule) for lesson in lessons]
    longest = sorted(range(len(lessons)), key=lambda i: -orders[i].steps)
    stack = _Stack(chain, [lessons[i] for i in longest], [orders[i] for i in longest], rule)
    results = dict(zip(longest, stack.train(), strict=True))
    return [results[i] for i in range(len(lessons))]


@dataclass(frozen=True)
class _Order:
    """In which order a client sees its samples: row numbers, batch by batch, and each one's part in its batch."""

    picked: Tensor
    parts: Tensor
    """One over the size of the batch; zero where there is no sample."""
    rows: int

    @classmethod
    def of(cls, lesson: Lesson, rows: int, rule: Rule) -> _Order:
        """Draw the order of every epoch, as the sequential solver does."""
        n = len(lesson.examples)
        steps = math.ceil(n / rule.training.batch_size)
        last = n - (steps - 1) * rule.training.batch_size
        parts = torch.full((steps, rows), 1.0 / rows)
        parts[-1] = 0.0
        parts[-1, :last] = 1.0 / last
        picked = torch.zeros(rule.epochs, steps * rows, dtype=torch.long)
        for epoch in picked:
            epoch[:n] = torch.randperm(n, generator=lesson.chance)
        return cls(picked.flatten(), parts.repeat(rule.epochs, 1).flatten(), rows)

    @property
    def steps(self) -> int:
        return len(self.picked) // self.rows


class _Parameter:
    """One parameter of all clients: a stack of padded matrices, and what its descent needs beside them."""

    def __init__(self, name: str, lessons: Sequence[Lesson], rule: Rule) -> None:
        self.rule = rule
        self.trained = name in lessons[0].trained
        self.values = _stacked([lesson.weights[name] for lesson in lessons])
        pulled = rule.objective.pull > 0 and name in lessons[0].received
        self.start = _stacked([lesson.received[name] for lesson in lessons]) if pulled else None
        self.pull = rule.objective.pull if pulled else 0.0
        self.velocity = torch.zeros_like(self.values) if rule.training.momentum and self.trained else None

    def descend(self, left: Tensor, right: Tensor) -> None:
        """Take a step of the first clients of the stack; left @ right is the gradient."""
        active, lr, shrink = len(left), self.rule.lr, self.rule.training.weight_decay + self.pull
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


class _Stack:
    """Clients side by side, those with most steps first."""

    def __init__(
        self, chain: Chain, lessons: Sequence[Lesson], orders: Sequence[_Order], rule: Rule
    ) -> None:
        self.names, self.lessons, self.orders, self.rule = chain.names, lessons, orders, rule
        self.layers = [
            (_Parameter(weight, lessons, rule), _Parameter(bias, lessons, rule)) for weight, bias in chain.names
        ]
        self.first = next((i for i, layer in enumerate(self.layers) if any(p.trained for p in layer)), -1)
        self.outputs = len(lessons[0].weights[chain.names[-1][1]])
        self.rows = orders[0].rows
        self.ones = torch.ones(1, 1, 1).expand(len(lessons), 1, self.rows)
        shape = (len(lessons), orders[0].steps * self.rows)
        self.losses, self.hits = torch.zeros(shape), torch.zeros(shape, dtype=torch.bool)

    @torch.no_grad()
    def train(self) -> list[Trained]:
        """Take every client's steps; write back what they changed."""
        for at, x, y, parts in self._batches():
            self._step(at, x, y, parts)
        for names, layer in zip(self.names, self.layers, strict=True):
            for name, parameter in zip(names, layer, strict=True):
                _unstack(parameter, name, self.lessons)
        return [self._trained(i) for i in range(len(self.lessons))]

    def _step(self, at: slice, x: Tensor, y: Tensor, parts: Tensor) -> None:
        active = len(x)
        seen = self._forward(x)
        scores = seen.pop()[:, :, : self.outputs]
        self.losses[:active, at] = functional.log_softmax(scores, 2).gather(2, y).squeeze(2).neg_()
        self.hits[:active, at] = scores.argmax(2) == y.squeeze(2)
        slope = torch.zeros(active, self.rows, self.layers[-1][1].values.shape[2])
        slope[:, :, : self.outputs] = functional.softmax(scores, 2)
        slope.scatter_add_(2, y, torch.full((1, 1, 1), -1.0).expand(y.shape)).mul_(parts)
        self._backward(seen, slope)

    def _forward(self, x: Tensor) -> list[Tensor]:
        """Return the inputs of every layer, and the outputs of the last."""
        seen = [x]
        for weight, bias in self.layers:
            outputs = torch.baddbmm(bias.values[: len(x)], seen[-1], weight.values[: len(x)].transpose(1, 2))
            seen.append(outputs if weight is self.layers[-1][0] else outputs.relu_())
        return seen

    def _backward(self, seen: list[Tensor], slope: Tensor) -> None:
        """Go back through the layers, down to the first that is trained; change each on the way."""
        for i in range(len(self.layers) - 1, self.first - 1, -1):
            weight, bias = self.layers[i]
            below = torch.bmm(slope, weight.values[: len(slope)]) if i > self.first else None
            if weight.trained:
                weight.descend(slope.transpose(1, 2), seen[i])
            if bias.trained:
                bias.descend(self.ones[: len(slope)], slope)
            if below is not None:
                slope = torch.ops.aten.threshold_backward(below, seen[i], 0)

    def _batches(self) -> Iterator[tuple[slice, Tensor, Tensor, Tensor]]:
        """Yield, step by step, the batches of all clients that still have one."""
        total, rows = self.orders[0].steps, self.rows
        width = self.layers[0][0].values.shape[2]
        at_once = max(1, STAGE // (len(self.lessons) * rows * width))
        stage = torch.zeros(len(self.lessons), min(at_once, total) * rows, width)
        labels = torch.zeros(len(self.lessons), total * rows, 1, dtype=torch.long)
        parts = torch.zeros(len(self.lessons), total * rows, 1)
        for i, (lesson, order) in enumerate(zip(self.lessons, self.orders, strict=True)):
            labels[i, : len(order.picked), 0] = lesson.examples.y.index_select(0, order.picked)
            parts[i, : len(order.parts), 0] = order.parts
        for step in range(total):
            if step % at_once == 0:
                self._gather(stage, slice(step * rows, (step + at_once) * rows))
            active = sum(order.steps > step for order in self.orders)
            at = slice(step * rows, (step + 1) * rows)
            here = slice(step % at_once * rows, (step % at_once + 1) * rows)
            yield at, stage[:active, here], labels[:active, at], parts[:active, at]

    def _gather(self, stage: Tensor, at: slice) -> None:
        """Fill the stage with the inputs of some steps."""
        for place, lesson, order in zip(stage, self.lessons, self.orders, strict=True):
            picked = order.picked[at]
            if len(picked):
                x = inputs_of(lesson.examples, picked).flatten(1)
                place[: len(x), : x.shape[1]] = x

    def _trained(self, i: int) -> Trained:
        order, rule = self.orders[i], self.rule
        there = order.parts > 0
        n = int(there.sum())
        loss = float(self.losses[i, : len(there)][there].sum(dtype=torch.float64)) / max(1, n)
        score = Score(n, int(self.hits[i, : len(there)][there].sum()), loss)
        return Trained(
            score, order.steps, step_weight(order.steps, rule.training, rule.lr, rule.objective.pull)
        )


def _stacked(tensors: Sequence[Tensor]) -> Tensor:
    """Return matrices (a vector is one row) one upon the other, padded with zeros."""
    rows, columns = (1, *tensors[0].shape)[-2:]
    height = padded(rows) if tensors[0].dim() == 2 else 1
    stack = torch.zeros(len(tensors), height, padded(columns))
    for place, tensor in zip(stack, tensors, strict=True):
        place[:rows, :columns] = tensor
    return stack


def _unstack(parameter: _Parameter, name: str, lessons: Sequence[Lesson]) -> None:
    if parameter.trained:
        for place, lesson in zip(parameter.values, lessons, strict=True):
            own = lesson.weights[name]
            own.copy_(place[: own.shape[0], : own.shape[1]] if own.dim() == 2 else place[0, : len(own)])
