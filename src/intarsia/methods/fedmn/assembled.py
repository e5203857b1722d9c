"""The network that a client's gates assemble from a module pool, without the pool."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

OUTPUT = "output"
"""Where the links of the heads lead."""


class Assembled(nn.Module):
    """The blocks that are used, and what each one's input is: the mean over its open links."""

    def __init__(self, blocks: Mapping[str, nn.Module], links: Mapping[str, Mapping[str, float]]) -> None:
        super().__init__()
        for name, block in blocks.items():
            self.add_module(name, block)
        self.order = list(blocks)
        """From the encoders to the heads."""
        self.links = links
        """The gates of the links that lead to a block, by where they begin; encoders have none."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the mean of the heads."""
        values: dict[str, Tensor] = {}
        for name in self.order:
            values[name] = self.get_submodule(name)(self._mean(values, name) if name in self.links else x)
        return self._mean(values, OUTPUT)

    def _mean(self, values: Mapping[str, Tensor], name: str) -> Tensor:
        links = self.links[name]
        total = torch.stack([values[start] * gate for start, gate in links.items()]).sum(0)
        return total / sum(links.values())
