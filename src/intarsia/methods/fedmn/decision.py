"""Which links of the pool a client uses: binary concrete gates, drawn from the scores of its router."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from intarsia.core import SettingsError
from intarsia.methods.fedmn.links import Layers, binary_concrete, complete, straight_through
from intarsia.methods.fedmn.module_pool import ModulePool

Numbers = NDArray[np.float64]
Standard = tuple[Numbers, Numbers]
"""What is subtracted from every link's scores, and what the rest is multiplied by."""
R = TypeVar("R", bound=Hashable)


@dataclass(frozen=True)
class Decision:
    """Which links a client uses in a round, and how that depends on its router's scores: plain values."""

    scores: list[float]
    """The logits of the probabilities pi."""
    slope: list[float]
    """How fast they grow with what the router gave."""
    noise: list[float]
    temperature: float
    gates: list[float]
    fallback: bool = False
    """Whether no path was complete, so that the likeliest was switched on."""

    def complete(self, layers: Layers) -> Decision:
        """Return the same with links that are used or not, and a path from an encoder to the output."""
        used = torch.tensor([float(gate > 0.5) for gate in self.gates], dtype=torch.float64)
        gates, fallback = complete(layers, used, torch.tensor(self.scores, dtype=torch.float64))
        return replace(self, gates=gates.tolist(), fallback=fallback)

    def with_gradient(self, scores: Tensor, hard: bool) -> Tensor:
        """Return the gates with the gradient of the soft ones with respect to the scores."""
        soft = binary_concrete(scores, scores.new_tensor(self.noise), self.temperature)
        return straight_through(soft, scores.new_tensor(self.gates)) if hard else soft

    def in_short(self, pool: ModulePool) -> dict[str, Any]:
        """Return what is noted of it."""
        return {
            "gates": [round(gate, 6) for gate in self.gates],
            "probabilities": [round(float(p), 6) for p in torch.sigmoid(torch.tensor(self.scores))],
            "blocks": pool.active_names(self.gates),
            "fallback": self.fallback,
        }


def draw_links(scores: Numbers, standard: Standard, noise: Numbers, temperature: float) -> Decision:
    """Draw soft gates from scores and noise (eq. 5); noise of 1/2 throughout gives those without chance."""
    centre, slope = standard
    logits = (scores - centre) * slope
    gates = binary_concrete(torch.from_numpy(logits), torch.from_numpy(noise), temperature)
    return Decision(logits.tolist(), slope.tolist(), noise.tolist(), temperature, gates.tolist())


def standards(
    scores: Mapping[str, Numbers], routers: Mapping[str, R], gain: float | None
) -> dict[R, Standard]:
    """Return the standard of every router: scores of different routers cannot be compared.

    Without a gain, scores stay as they are; else each link's are centred and spread by the gain.
    """
    if len({len(own) for own in scores.values()}) > 1:
        raise SettingsError("method 'fedmn': all clients need a pool with the same model.layers")
    peers: dict[R, list[Numbers]] = {}
    for client, own in scores.items():
        peers.setdefault(routers[client], []).append(own)
    return {router: _standard(np.stack(several), gain) for router, several in peers.items()}


def _standard(scores: Numbers, gain: float | None) -> Standard:
    if gain is None:
        return np.zeros(scores.shape[1]), np.ones(scores.shape[1])
    spread = scores.std(0)
    return scores.mean(0), np.where(spread > 0, gain / np.maximum(spread, 1e-12), 0.0)
