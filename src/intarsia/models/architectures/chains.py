"""What networks that are chains of layers have in common."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from typing import Annotated

from pydantic import Field
from torch import nn

from intarsia.core import SettingsError
from intarsia.models.spec import Shape
from intarsia.models.weights import initialise

Size = Annotated[int, Field(ge=1)]
Chain = OrderedDict[str, nn.Module]
"""Layers by name, in their order."""


def check_images(model: str, shape: Shape, least: int, multiple: int = 1) -> None:
    """Refuse inputs that are no images of at least this size, or whose sides are no such multiples."""
    if len(shape) != 3 or min(shape[1:]) < least or any(side % multiple for side in shape[1:]):
        whole = f" with sides that are multiples of {multiple}" if multiple > 1 else ""
        raise SettingsError(
            f"model '{model}' needs images (channels, height, width) of at least {least}x{least}{whole}, not "
            f"{list(shape)}: set the population's 'size', or choose another model ('mlp' takes any shape)"
        )


def add_dense(
    layers: Chain, width: int, sizes: Iterable[int], name: str, between: str, activation: type[nn.Module]
) -> int:
    """Add linear layers of these sizes, NAME1, NAME2, ..., each with an activation; return the last size."""
    for number, size in enumerate(sizes, 1):
        layers[f"{name}{number}"] = nn.Linear(width, size)
        layers[f"{between}{number}"] = activation()
        width = size
    return width


def with_pooled_head(layers: Chain, width: int, outputs: int) -> nn.Sequential:
    """Return the network that ends in a mean over the map and a linear head; its convolutions are drawn for ReLU."""
    layers |= OrderedDict(pool=nn.AdaptiveAvgPool2d(1), flatten=nn.Flatten(), head=nn.Linear(width, outputs))
    model = nn.Sequential(layers)
    initialise(model)
    return model
