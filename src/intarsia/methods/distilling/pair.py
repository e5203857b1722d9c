"""Two networks at one client: its own, and one that travels."""

from __future__ import annotations

from torch import Tensor, nn


class Pair(nn.Module):
    """A client's own network, which answers, and a knowledge network beside it."""

    def __init__(self, own: nn.Module, knowledge: nn.Module) -> None:
        super().__init__()
        self.own = own
        self.knowledge = knowledge

    def forward(self, x: Tensor) -> Tensor:
        """Return what the own network says."""
        scores: Tensor = self.own(x)
        return scores

    def both(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return what each network says; from copies of the inputs, as either may change them."""
        return self.own(x.clone()), self.knowledge(x.clone())

    def plain(self) -> nn.Module:
        """Return the own network alone."""
        return self.own
