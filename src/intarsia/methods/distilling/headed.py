"""A network as an extractor of representations and a header that names classes."""

from __future__ import annotations

import copy

from torch import Tensor, nn

from intarsia.core import SettingsError
from intarsia.models.parts import parts_of


class Headed(nn.Module):
    """An extractor, and a header on the representations that it gives."""

    def __init__(self, extractor: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.extractor = extractor
        self.head = head

    def forward(self, x: Tensor) -> Tensor:
        """Return the header's scores."""
        scores: Tensor = self.head(self.extractor(x))
        return scores


def headed(model: nn.Module, features: int = 0) -> Headed:
    """Return a network with its last part apart, under the same name in all networks.

    With `features`, a new layer of that width and a ReLU come before a new last layer: networks whose last layers
    differ then have one in common. Draws come from torch's own generator.
    """
    extractor, name = copy.deepcopy(model), _last(model)
    head = extractor.get_submodule(name)
    if not features:
        _replace(extractor, name, nn.Identity())
        return Headed(extractor, head)
    if not isinstance(head, nn.Linear):
        raise SettingsError(
            f"the last part '{name}' of {type(model).__name__} is a {type(head).__name__}, not a linear layer: it "
            "cannot have another width; leave method.features at 0"
        )
    _replace(extractor, name, nn.Sequential(nn.Linear(head.in_features, features), nn.ReLU()))
    return Headed(extractor, nn.Linear(features, head.out_features))


def _last(model: nn.Module) -> str:
    """Return the name of the last part, which must be a module."""
    name = next(reversed(dict(parts_of(model))), "")
    if name not in dict(model.named_modules()) or not name:
        raise SettingsError(
            f"{type(model).__name__} has no last part that is a module of its own: its header cannot be told apart"
        )
    return name


def _replace(model: nn.Module, name: str, module: nn.Module) -> None:
    parent, _, leaf = name.rpartition(".")
    setattr(model.get_submodule(parent), leaf, module)
