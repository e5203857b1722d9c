"""Stitches: small trainable layers between two blocks whose shapes do not fit."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from torch import nn

from intarsia.methods.pfedclub.decompose import Cost
from intarsia.models.spec import Shape


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
    def cost(self) -> Cost:
        """What it needs."""
        values = self.gives[0] * min(math.prod(self.takes[1:]), math.prod(self.gives[1:]))
        return Cost((self.takes[0] + 1) * self.gives[0], self.takes[0] * values, values)

    def to_json(self) -> dict[str, Any]:
        """Return the stitch as plain values."""
        return {"takes": list(self.takes), "gives": list(self.gives), "head": self.head}

    def build(self) -> nn.Sequential:
        """Return its layers, with weights drawn from torch's generator."""
        layers = self._between_maps() if len(self.takes) == len(self.gives) == 3 else self._linear()
        if not self.head:
            layers.append(nn.ReLU())
        if len(self.gives) > len(self.takes):
            layers += [nn.Unflatten(1, (-1, 1, 1)), nn.Upsample(self.gives[1:])]
        return nn.Sequential(*layers)

    def _between_maps(self) -> list[nn.Module]:
        conv, size = nn.Conv2d(self.takes[0], self.gives[0], 1), self.gives[1:]
        if self.takes[1:] == size:
            return [conv]
        pool = nn.AdaptiveAvgPool2d(size)
        return [conv, pool] if math.prod(size) > math.prod(self.takes[1:]) else [pool, conv]

    def _linear(self) -> list[nn.Module]:
        linear = nn.Linear(self.takes[0], self.gives[0])
        return [linear] if len(self.takes) == 1 else [nn.AdaptiveAvgPool2d(1), nn.Flatten(), linear]
