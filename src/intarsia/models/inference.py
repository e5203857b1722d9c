"""The same network for inference alone, as plain layers: what only training needs is gone."""

from __future__ import annotations

import copy
from typing import Protocol, runtime_checkable

from torch import nn

from intarsia.models.adapters import ConvAdapter, LowRankAdapter
from intarsia.models.slices import unhooked


@runtime_checkable
class Plainable(Protocol):
    """A module that a method made, and that can say which simpler one gives the same."""

    def plain(self) -> nn.Module:
        """Return a module that gives the same in evaluation mode, with what only training needs left out."""


def plain_model(model: nn.Module) -> nn.Module:
    """Return a copy that gives the same in evaluation mode and runs without the method that trained it.

    Adapters are folded, gates are fixed and blocks behind closed ones dropped, Gaussian weights are their means, slices
    hold their scaling, and networks that only travel are left out. Draws of weights in evaluation are left out too.
    """
    return _plain(copy.deepcopy(model).eval(), {}).requires_grad_(False)


def _plain(module: nn.Module, done: dict[nn.Module, nn.Module]) -> nn.Module:
    if module in done:
        return done[module]
    made = unhooked(module)
    if isinstance(made, (ConvAdapter, LowRankAdapter)):
        made = made.folded()
    while isinstance(made, Plainable):
        made = made.plain()
    for name, child in list(made._modules.items()):
        if child is not None:
            made._modules[name] = _plain(child, done)
    done[module] = made
    return made
