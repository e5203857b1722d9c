"""Stitches: small trainable layers between two blocks whose shapes do not fit."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from intarsia.core import WireError
from intarsia.models.spec import Shape


class Spread(nn.Module):
    """A vector becomes a map: every channel has its value everywhere."""

    def __init__(self, height: int, width: int) -> None:
        super().__init__()
        self.size = (height, width)

    def forward(self, x: Tensor) -> Tensor:
        """Return maps (samples, channels, height, width)."""
        return x[:, :, None, None].expand(-1, -1, *self.size).contiguous()


@dataclass(frozen=True)
class Stitch:
    """A stitch as plain data: what it takes and gives, maps (channels, height, width) or vectors.

    map to map: adaptive pooling where sizes differ, a 1x1 convolution, ReLU; both orders of the first two give the
    same, so the convolution stands where the map is smaller. To a vector: maps are averaged to a
    point, then a linear layer and ReLU. Vector to map: a linear layer to the channels, ReLU, the same value
    everywhere. A head has no ReLU. (The paper says ReLU(W'X + b); a dense W between maps would outweigh the model.)
    """

    takes: Shape
    gives: Shape
    head: bool = False

    @property
    def parameters(self) -> int:
        """How many weights it has."""
        return (self.takes[0] + 1) * self.gives[0]

    @property
    def macs(self) -> int:
        """Multiplications with addition for one sample."""
        return self.takes[0] * self.activations

    @property
    def activations(self) -> int:
        """Values that its trained layer gives for one sample."""
        return self.gives[0] * min(math.prod(self.takes[1:]), math.prod(self.gives[1:]))

    def build(self) -> nn.Sequential:
        """Return its layers, with weights drawn from torch's generator."""
        layers = self._between_maps() if len(self.takes) == len(self.gives) == 3 else self._linear()
        if not self.head:
            layers.append(nn.ReLU())
        if len(self.gives) > len(self.takes):
            layers.append(Spread(*self.gives[1:]))
        return nn.Sequential(*layers)

    def _between_maps(self) -> list[nn.Module]:
        conv = nn.Conv2d(self.takes[0], self.gives[0], 1)
        if self.takes[1:] == self.gives[1:]:
            return [conv]
        pool = nn.AdaptiveAvgPool2d(self.gives[1:])
        grows = math.prod(self.gives[1:]) > math.prod(self.takes[1:])
        return [conv, pool] if grows else [pool, conv]

    def _linear(self) -> list[nn.Module]:
        linear = nn.Linear(self.takes[0], self.gives[0])
        return [linear] if len(self.takes) == 1 else [nn.AdaptiveAvgPool2d(1), nn.Flatten(), linear]

    def to_json(self) -> dict[str, Any]:
        """Return the stitch as plain values."""
        return {"takes": list(self.takes), "gives": list(self.gives), "head": self.head}

    @classmethod
    def from_json(cls, data: Any) -> Stitch:
        """Read a stitch; anything but shapes of maps or vectors is an error."""
        try:
            takes, gives, head = tuple(data["takes"]), tuple(data["gives"]), data["head"]
        except (TypeError, KeyError):
            raise WireError(f"{data!r} is no stitch: it needs 'takes', 'gives' and 'head'") from None
        sizes = all(type(side) is int and side > 0 for side in (*takes, *gives))
        if not sizes or {len(takes), len(gives)} - {1, 3} or type(head) is not bool:
            raise WireError(f"{data!r} is no stitch: it goes from a map or vector to a map or vector")
        return cls(takes, gives, head)
