"""Layers of several clients' models, one upon the other: each kind's way forward and back.

A layer takes and gives stacks of matrices: one a client, one row a sample, one upon the other. On the way back it
changes its own parameters: no graph, no gradients in memory.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from intarsia.models import LastStep
from intarsia.training.descent import Descent
from intarsia.training.optimisers import adam_step

LINE = 16
"""Numbers in a cache line: where a matrix begins within one can change the last bit of a product."""

Numbers = NDArray[np.float32]
Order = tuple[int, ...]


def padded(length: int) -> int:
    """Return the length in whole cache lines."""
    return math.ceil(length / LINE) * LINE


@dataclass(frozen=True)
class Form:
    """How a parameter lies in a stack: its rows in pieces, in some order, each piece padded with zeros by itself."""

    shape: tuple[int, ...]
    order: Order = (0,)

    @property
    def sizes(self) -> tuple[int, int, int]:
        """Pieces, rows of a piece, columns (a vector has one)."""
        return len(self.order), self.shape[0] // len(self.order), math.prod(self.shape[1:])

    @property
    def numbers(self) -> int:
        """How many numbers it holds with its padding."""
        return math.prod(self._padded)

    @property
    def _padded(self) -> tuple[int, int, int]:
        pieces, rows, columns = self.sizes
        return pieces, padded(rows), padded(columns) if len(self.shape) == 2 else 1

    @torch.no_grad()
    def stack(self, tensors: Sequence[Tensor]) -> Tensor:
        """Return matrices one upon the other; a vector is a matrix of one row."""
        sizes = self.sizes
        _, rows, columns = sizes
        stack = torch.zeros(len(tensors), *self._padded)
        for place, tensor in zip(stack[:, :, :rows, :columns].unbind(0), tensors, strict=True):
            place.copy_(_turned(tensor.view(sizes), self.order))
        return stack.flatten(1, 2) if len(self.shape) == 2 else stack.flatten(1).unsqueeze(1)

    def unstack(self, stack: Tensor) -> Sequence[Tensor]:
        """Return every client's values, as the parameter has them."""
        _, rows, columns = self.sizes
        inverse = tuple(map(self.order.index, range(len(self.order))))
        pieces = stack.view(-1, *self._padded)[:, :, :rows, :columns]
        return [_turned(own, inverse).reshape(self.shape) for own in pieces.unbind(0)]


def _turned(pieces: Tensor, order: Order) -> Tensor:
    return pieces if len(order) == 1 else pieces[list(order)]


class Weights:
    """One parameter that all share, and nobody trains."""

    trained = False
    rounded = False
    """Whether products are of numbers that were rounded to bf16."""

    def __init__(self, form: Form, values: Tensor) -> None:
        self.form, self.values = form, values

    def of(self, active: int) -> Tensor:
        """Return the matrices of the first of the stack."""
        return self.values.expand(active, -1, -1)

    def descend(self, active: int, left: Tensor, right: Tensor) -> None:
        """Change nothing."""


class Parameter(Weights):
    """One parameter of all clients, and what its descent needs beside it."""

    def __init__(
        self,
        form: Form,
        tensors: Sequence[Tensor],
        descent: Descent,
        trained: bool,
        received: Sequence[Tensor] | None = None,
    ) -> None:
        super().__init__(form, form.stack(tensors))
        self.descent, self.trained = descent, trained
        self.rounded = descent.training.precision == "bf16"
        self.start = None if received is None else form.stack(received)
        self.pull = 0.0 if received is None else descent.objective.pull
        adam = descent.training.optimizer == "adam"
        self.velocity = self._zeros(trained and (adam or descent.training.momentum > 0))
        self.squares = self._zeros(trained and adam)
        self.steps = 0

    def _zeros(self, needed: bool) -> Tensor | None:
        return torch.zeros_like(self.values) if needed else None

    def of(self, active: int) -> Tensor:
        """Return the matrices of the first clients."""
        return self.values[:active]

    def descend(self, active: int, left: Tensor, right: Tensor) -> None:
        """Take a step of the first clients of the stack, if it is trained; left @ right is the gradient."""
        if not self.trained:
            return
        lr, training = self.descent.lr, self.descent.training
        shrink = training.weight_decay + self.pull
        values = self.values[:active]
        start = None if self.start is None else self.start[:active]
        if self.velocity is None:
            values.baddbmm_(left, right, beta=1 - lr * shrink, alpha=-lr)
            if start is not None:
                values.add_(start, alpha=lr * self.pull)
            return
        velocity = self.velocity[:active]
        if self.squares is None:
            slope = velocity.baddbmm_(left, right, beta=training.momentum)
        else:
            slope = torch.bmm(left, right)
        if shrink:
            slope.add_(values, alpha=shrink)
        if start is not None:
            slope.add_(start, alpha=-self.pull)
        if self.squares is None:
            values.add_(velocity, alpha=-lr)
        else:
            self.steps += 1  # every client is at the same step of its own
            adam_step([values], [velocity], [self.squares[:active]], [slope], lr, self.steps)


class Layer(ABC):
    """One layer of all clients of a stack."""

    weights: ClassVar[tuple[str, ...]] = ()
    """The names of its parameters, within the layer."""
    order: ClassVar[Order] = (0,)
    """The pieces that the rows of its parameters consist of, in the order in which they lie in the stack."""

    def __init__(self, parameters: Sequence[Weights], inputs: int) -> None:
        self.parameters, self.inputs = parameters, inputs
        self.trained = any(parameter.trained for parameter in parameters)

    @classmethod
    def fits(cls, module: nn.Module) -> bool:
        """Return whether the layer does what this module does."""
        return True

    @abstractmethod
    def forward(self, active: int, x: Tensor) -> Tensor:
        """Return the outputs of the first clients; layers without parameters overwrite what they are given."""

    @abstractmethod
    def backward(self, active: int, slope: Tensor, deeper: bool) -> Tensor:
        """Take a step down the slope at the outputs; return the slope at the inputs (if not `deeper`, anything)."""


class Linear(Layer):
    """A linear layer with bias."""

    weights: ClassVar[tuple[str, ...]] = ("weight", "bias")

    @classmethod
    def fits(cls, module: nn.Module) -> bool:
        """Return whether there is a bias."""
        return module.bias is not None

    def forward(self, active: int, x: Tensor) -> Tensor:
        """Return the outputs; the inputs are kept."""
        weight, bias = self.parameters
        self.seen, self.used, beside = (
            _rounded(t, weight.rounded) for t in (x, weight.of(active), bias.of(active))
        )
        return torch.baddbmm(beside, self.seen, self.used.transpose(1, 2)).float()

    def backward(self, active: int, slope: Tensor, deeper: bool) -> Tensor:
        """Take the step; sums of rounded numbers are its gradients, in single precision."""
        weight, bias = self.parameters
        rounded = _rounded(slope, weight.rounded)
        below = torch.bmm(rounded, self.used).float() if deeper else slope
        slope = rounded.float()
        weight.descend(active, slope.transpose(1, 2), self.seen.float())
        bias.descend(active, _ones(active, slope.shape[1]), slope)
        return below


class ReLU(Layer):
    """What is below zero becomes zero."""

    def forward(self, active: int, x: Tensor) -> Tensor:
        """Return the outputs, in place."""
        self.given = x.relu_()
        return self.given

    def backward(self, active: int, slope: Tensor, deeper: bool) -> Tensor:
        """Return the slope where something was above zero."""
        below: Tensor = torch.ops.aten.threshold_backward(slope, self.given, 0)
        return below


class Tanh(Layer):
    """The hyperbolic tangent; numpy's, which is many times faster than torch's."""

    def forward(self, active: int, x: Tensor) -> Tensor:
        """Return the outputs, in place."""
        np.tanh(x.numpy(), out=x.numpy())
        self.given = x
        return x

    def backward(self, active: int, slope: Tensor, deeper: bool) -> Tensor:
        """Return the slope times 1 - tanh^2."""
        below: Tensor = torch.ops.aten.tanh_backward(slope, self.given)
        return below


class LSTM(Layer):
    """An LSTM over (steps, channels) that gives its output after the last step; the first layer of a chain.

    The inputs of all steps are multiplied at once, and so are the gradients of the weights. What is left for each step
    is a dozen small operations: numpy's, because calling one costs a third of calling torch's. The pieces of the
    gates are g, i, f, o; the last three are sigmoids, taken as (1 + tanh(z / 2)) / 2: one tanh for all four.
    """

    weights: ClassVar[tuple[str, ...]] = ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0")
    order: ClassVar[Order] = (2, 0, 1, 3)

    @classmethod
    def fits(cls, module: nn.Module) -> bool:
        """Return whether it is one layer, in one direction, without projection."""
        assert isinstance(module, LastStep)
        simple = module.num_layers == 1 and not module.bidirectional and module.proj_size == 0
        return simple and module.bias and module.batch_first

    def __init__(self, parameters: Sequence[Weights], inputs: int) -> None:
        super().__init__(parameters, inputs)
        self.channels = parameters[0].form.shape[1]
        self.steps = inputs // self.channels
        self.units = padded(parameters[1].form.shape[1])
        self.scale = torch.tensor([1.0, 0.5, 0.5, 0.5]).view(4, 1, 1, 1)
        self.room: _Room | None = None

    def forward(self, active: int, x: Tensor) -> Tensor:
        """Return the last outputs; what every step gave is kept, if the layer is trained."""
        rows = x.shape[1]
        if self.room is None or self.room.shape != (active, rows):
            self.room = _Room(active, rows, self)
        room = self.room
        from_input, from_output, *biases = (parameter.of(active) for parameter in self.parameters)
        samples = x[:, :, : self.inputs].reshape(active, rows, self.steps, self.channels)
        room.x.view(active, self.steps, rows, -1)[..., : self.channels] = samples.transpose(1, 2)
        given = torch.baddbmm(biases[0] + biases[1], room.x, from_input.transpose(1, 2))
        given = given.view(active, self.steps, rows, 4, self.units).permute(1, 3, 0, 2, 4)
        torch.mul(given, self.scale, out=room.gates)
        turned = from_output.view(active, 4, self.units, self.units).permute(1, 0, 3, 2)
        torch.mul(turned, self.scale, out=room.weight)
        self._run(room)
        return room.h[:, self.steps * rows :]

    def _run(self, room: _Room) -> None:
        weight, fresh = room.weight.numpy(), room.fresh.numpy()
        part = fresh[0]
        room.cells[0].zero_()
        for before, gates, (g, i, f, o), sigmoids, cell, new_cell, bent, after in room.forwards:
            np.matmul(before, weight, out=fresh)
            np.add(gates, fresh, out=gates)
            np.tanh(gates, out=gates)
            np.multiply(sigmoids, 0.5, out=sigmoids)
            np.add(sigmoids, 0.5, out=sigmoids)
            np.multiply(f, cell, out=new_cell)
            np.multiply(i, g, out=part)
            np.add(new_cell, part, out=new_cell)
            np.tanh(new_cell, out=bent)
            np.multiply(o, bent, out=after)

    def backward(self, active: int, slope: Tensor, deeper: bool) -> Tensor:
        """Go back through the steps; take the step."""
        room = self.room
        assert room is not None
        self._slopes(room)
        from_input, from_output, *biases = self.parameters
        weights = from_output.of(active).view(active, 4, self.units, self.units).transpose(0, 1).numpy()
        fresh, (of_cell, part), of_output = room.fresh.numpy(), room.spare.zero_().numpy(), slope.numpy()
        half, other, first, second = fresh[:2], fresh[2:], fresh[0], fresh[1]
        for slopes, by_cell, by_output, bent, f in room.backwards:
            np.multiply(of_output, bent, out=part)
            np.add(of_cell, part, out=of_cell)
            np.multiply(by_cell, of_cell, out=by_cell)
            np.multiply(by_output, of_output, out=by_output)
            np.multiply(of_cell, f, out=of_cell)
            np.matmul(slopes, weights, out=fresh)
            np.add(half, other, out=half)
            np.add(first, second, out=of_output)
        together = room.slopes.permute(2, 0, 3, 1, 4).reshape(active, -1, 4 * self.units)
        many = together.shape[1]
        from_input.descend(active, together.transpose(1, 2), room.x)
        from_output.descend(active, together.transpose(1, 2), room.h[:, :many])
        for bias in biases:
            bias.descend(active, _ones(active, many), together)
        return slope

    def _slopes(self, room: _Room) -> None:
        """Find how what enters the gates moves the cell (g, i, f) and the output (o), and the cell the output."""
        g, i, f, o = room.gates.unbind(1)
        of_g, of_i, of_f, of_o = room.slopes.unbind(1)
        sigmoid, tanh = torch.ops.aten.sigmoid_backward.grad_input, torch.ops.aten.tanh_backward.grad_input
        tanh(i, g, grad_input=of_g)
        sigmoid(g, i, grad_input=of_i)
        sigmoid(room.cells[:-1], f, grad_input=of_f)
        sigmoid(room.bent, o, grad_input=of_o)
        tanh(o, room.bent, grad_input=room.bent)


class _Room:
    """Where an LSTM computes for some clients with some rows each: arrays, and what each time step sees of them."""

    def __init__(self, active: int, rows: int, layer: LSTM) -> None:
        self.shape = active, rows
        steps, units, keep = layer.steps, layer.units, layer.trained
        self.x = torch.zeros(active, steps * rows, padded(layer.channels))
        self.weight = torch.empty(4, active, units, units)
        self.fresh = torch.empty(4, active, rows, units)
        self.spare = torch.empty(2, active, rows, units)
        self.gates = torch.empty(steps, 4, active, rows, units)
        self.h = torch.zeros(active, (steps + 1) * rows, units)
        self.cells = torch.zeros(steps + 1 if keep else 1, active, rows, units)
        self.bent = torch.empty(steps if keep else 1, active, rows, units)
        gates, bent = list(self.gates.numpy()), list(self.bent.numpy())
        h = list(self.h.view(active, steps + 1, rows, units).transpose(0, 1).numpy())
        cells = list(self.cells.numpy())
        if not keep:
            cells, bent = cells * (steps + 1), bent * steps
        each = [tuple(own) for own in gates]
        self.forwards = list(
            zip(
                h[:-1],
                gates,
                each,
                [own[1:] for own in gates],
                cells[:-1],
                cells[1:],
                bent,
                h[1:],
                strict=True,
            )
        )
        if keep:
            self.slopes = torch.empty(steps, 4, active, rows, units)
            slopes = list(self.slopes.numpy())
            by_cell, by_output = [own[:3] for own in slopes], [own[3] for own in slopes]
            forgotten = [own[2] for own in each]
            self.backwards = list(zip(slopes, by_cell, by_output, bent, forgotten, strict=True))[::-1]


def _rounded(tensor: Tensor, rounded: bool) -> Tensor:
    return tensor.bfloat16() if rounded else tensor


_ONE = torch.ones(1, 1, 1)


def _ones(active: int, rows: int) -> Tensor:
    return _ONE.expand(active, 1, rows)


KINDS: dict[type[nn.Module], type[Layer]] = {nn.Linear: Linear, nn.ReLU: ReLU, nn.Tanh: Tanh, LastStep: LSTM}
