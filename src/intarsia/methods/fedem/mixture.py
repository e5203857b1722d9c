"""Several networks of one kind, mixed by weights."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from typing import Literal

import torch
from torch import Tensor, nn

from intarsia.core import SettingsError
from intarsia.models.adapters import ConvAdapter
from intarsia.models.parts import parts_of

Differ = Literal["all", "last"]


class Mixture(nn.Module):
    """A mixture of classifiers: the probabilities of its components, weighted.

    The outputs are logarithms of probabilities, so that their cross entropy is the mixture's.
    """

    weights: Tensor

    def __init__(self, components: Sequence[nn.Module]) -> None:
        super().__init__()
        self.components = nn.ModuleDict({f"component-{n}": c for n, c in enumerate(components, 1)})
        self.register_buffer("weights", torch.full((len(components),), 1 / len(components)))

    def each(self, x: Tensor) -> Tensor:
        """Return every component's log probabilities: (components, samples, classes)."""
        # A copy each, as a component may change its input.
        scores = [component(x.clone()) for component in self.components.values()]
        return torch.stack([own.float().log_softmax(1) for own in scores])

    def mix(self, each: Tensor) -> Tensor:
        """Return the log probabilities of the mixture, given those of its components."""
        return torch.logsumexp(each + self.weights.log()[:, None, None], 0)

    def forward(self, x: Tensor) -> Tensor:
        """Return the log probabilities of the mixture."""
        return self.mix(self.each(x))


def mixture_of(model: nn.Module, number: int, differ: Differ = "all") -> Mixture:
    """Return a mixture of so many networks like this one; the first is this one, the others start elsewhere.

    All their layers draw new initial weights, or only those of the last part; adapters start anew by their own
    rule, and what is frozen stays. Draws come from torch's own generator.
    """
    if number == 1:
        return Mixture([model])
    names = _redrawn(model, differ)
    others = [_fresh(model, names) for _ in range(number - 1)]
    if all(torch.equal(weight, others[0].get_parameter(name)) for name, weight in model.named_parameters()):
        raise SettingsError(
            f"{type(model).__name__} has no trainable layer that draws its weights: its copies would all be alike"
        )
    return Mixture([model, *others])


def _redrawn(model: nn.Module, differ: Differ) -> list[str]:
    """Return the names of the modules that draw new weights; one that cannot is an error."""
    patterns = list(parts_of(model).values())[-1:] if differ == "last" else [("*",)]
    found: dict[str, None] = {}
    for name, weight in model.named_parameters():
        if weight.requires_grad and any(fnmatchcase(name, p) for own in patterns for p in own):
            found[_drawn_by(model, name)] = None
    for path in found:
        module = model.get_submodule(path)
        if _redraw(module) is None:
            raise SettingsError(
                f"a mixture needs components that start differently, but '{path or type(model).__name__}' "
                f"({type(module).__name__}) has parameters and no method reset_parameters() to draw new ones: give "
                'it one, or let only the last part differ (method.differ = "last")'
            )
    return list(found)


def _drawn_by(model: nn.Module, weight: str) -> str:
    """Return the name of the module that draws a weight: the one that has it; of an adapter, what it is part of."""
    layer = weight.rpartition(".")[0]
    around = layer.rpartition(".")[0]
    return around if isinstance(model.get_submodule(around), ConvAdapter) else layer


def _fresh(model: nn.Module, names: Sequence[str]) -> nn.Module:
    fresh = copy.deepcopy(model)
    for name in names:
        redraw = _redraw(fresh.get_submodule(name))
        assert redraw is not None
        redraw()
    return fresh


def _redraw(module: nn.Module) -> Callable[[], None] | None:
    """Return what draws new weights; torch's attention has it under a name of its own."""
    usual = getattr(module, "reset_parameters", None) or getattr(module, "_reset_parameters", None)
    return usual if callable(usual) else None
