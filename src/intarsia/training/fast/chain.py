"""Which models can be trained side by side, and how many of them: a table, from model and settings alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import nn
from torch.nn import functional

from intarsia.core import DataError
from intarsia.data import Examples
from intarsia.models import LastStep
from intarsia.training.fast.folding import hooked
from intarsia.training.fast.stacked import KINDS, LSTM, Form, Layer, Linear, ReLU, Tanh, padded
from intarsia.training.losses import Loss
from intarsia.training.objectives import Objective
from intarsia.training.settings import Training

STACK = 1 << 21
"""Numbers that the models of a stack may hold: about what the caches of a core do."""
MOST = 64
"""Clients that a stack may have."""
SERIES = 16
"""Clients that a stack of recurrent models may have: what they remember of every step fills the caches sooner."""
SMALL = 256
"""Rows times units of a layer up to which batched LSTMs are faster than torch's own."""
FEW = 256
"""Samples up to which a client is scored together with others: larger ones gain nothing by it."""


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

    @cached_property
    def parameters(self) -> dict[str, Form]:
        """The forms of all parameters, by name."""
        return {name: form for _, forms in self.layers for name, form in forms.items()}

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

    @cached_property
    def most(self) -> int:
        """How many clients a stack of such models has at most: the table, by the model's size."""
        numbers = sum(form.numbers for form in self.parameters.values())
        return max(1, min(SERIES if self.recurrent else MOST, STACK // numbers))

    def inputs(self, clients: Sequence[Examples]) -> int:
        """Return how many numbers a sample has: as many with every client."""
        inputs = {self._inputs(own) for own in clients}
        if len(inputs) > 1:
            raise DataError(f"samples have {sorted(inputs)} numbers: they cannot lie side by side")
        return inputs.pop()

    def _inputs(self, examples: Examples) -> int:
        """Return it of one client; the padding must not hide that there are too many."""
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
    single = all(p.dtype == torch.float32 and p.device.type == "cpu" for p in module.parameters())
    flat = not isinstance(module, nn.Flatten) or (module.start_dim, module.end_dim) == (1, -1)
    kind = KINDS.get(type(module))
    return hooked(module) or not (single and flat and (kind is None or kind.fits(module)))


def chain_for(model: nn.Module, training: Training, objective: Objective, loss: Loss) -> Chain | None:
    """Return the chain of a model that is trained side by side with others: on cross-entropy, pulled or not."""
    usual = loss.function is functional.cross_entropy and objective.form != "own"
    if training.plain or not training.batched or not usual or training.class_weights != "none":
        return None
    chain = Chain.of(model)
    if chain is None or not chain.recurrent:
        return chain
    small = training.batch_size * padded(chain.first.shape[0] // 4) <= SMALL
    return chain if small and training.batched == "lstm" and training.precision == "fp32" else None


def rows_of(samples: int, training: Training) -> int:
    """Return how many rows a client's batches have, empty ones among them: the batch size, or hardly its samples."""
    return min(training.batch_size, power_of_two(samples))


def power_of_two(count: int) -> int:
    """Return the least power of two that is no less."""
    return 1 << (count - 1).bit_length()
