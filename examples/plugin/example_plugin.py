"""A model and a method of one's own, found by the entry points of this package's pyproject.toml."""

from __future__ import annotations

import math
from collections import OrderedDict
from typing import Annotated, ClassVar

from pydantic import Field
from torch import Tensor, nn

from intarsia import ClientInfo, Cut, Method, Sharing, part
from intarsia.methods import cut_before
from intarsia.models import Architecture, Shape


class GatedLayer(nn.Module):
    """A linear layer whose outputs are opened and closed by a second one."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.value = nn.Linear(inputs, outputs)
        self.gate = nn.Linear(inputs, outputs)

    def forward(self, x: Tensor) -> Tensor:
        """Return the gated values."""
        return self.value(x) * self.gate(x).sigmoid()


@part
class GatedMLP(Architecture):
    """Gated hidden layers (Dauphin et al. 2017), then a linear head."""

    name: ClassVar[str] = "gated_mlp"
    summary: ClassVar[str] = "gated hidden layers and a linear head"

    hidden: tuple[Annotated[int, Field(ge=1)], ...] = (32,)
    """How wide the hidden layers are."""

    def build(self, shape: Shape, outputs: int) -> nn.Module:
        """Return the layers in order."""
        layers: OrderedDict[str, nn.Module] = OrderedDict(flatten=nn.Flatten())
        width = math.prod(shape)
        for number, wide in enumerate(self.hidden, start=1):
            layers[f"hidden{number}"] = GatedLayer(width, wide)
            width = wide
        layers["head"] = nn.Linear(width, outputs)
        return nn.Sequential(layers)


@part
class BaseStaysHome(Sharing):
    """`base` at home, `head` with everyone."""

    name: ClassVar[str] = "lg_fedavg"
    needs: ClassVar[frozenset[str]] = frozenset({"base", "head"})

    head: str = ""
    """First part of the head (empty: the model's last part)."""

    def cut(self, model: nn.Module) -> Cut:
        """Cut before the head."""
        return cut_before(model, self.head, "base", "head")

    def group(self, block: str, client: ClientInfo) -> str:
        """Return everyone for the head, the client itself for the base."""
        return self.everyone(client) if block == "head" else "me"


@part
class LGFedAvg(Method):
    """Representations learned at home, the head averaged: clients with unlike inputs share what comes after.

    Liang et al. 2020, "Think locally, act globally: federated learning with local and global representations".
    Deviations: supervised only, without the adversarial term.
    """

    name: ClassVar[str] = "lg_fedavg"
    title: ClassVar[str] = "LG-FedAvg"

    sharing: Sharing = Field(default_factory=BaseStaysHome)
