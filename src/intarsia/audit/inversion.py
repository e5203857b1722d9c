"""The samples of a small batch, from the one step that they lead to.

Exact: a linear layer on the input has the gradient e x^T for its weights and e for its bias, so that a row of the
first divided by its entry of the second is x (Phong et al. 2018, "Privacy-preserving deep learning via additively
homomorphic encryption"). By search: inputs whose gradient points the same way (Geiping et al. 2020, "Inverting
gradients": cosine distance, total variation, signed Adam); the attacker is given the labels.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from intarsia.core import chance

Gradients = Mapping[str, Tensor]
STEPS = 300
RATE = 0.1
SMOOTH = 1e-3
LEAST = 1e-20


def first_linear(model: nn.Module, shape: tuple[int, ...], sent: Gradients) -> str | None:
    """Return the start of the names of a linear layer with a bias on the input itself, whose changes were sent."""
    probe = torch.rand(1, *shape, generator=torch.Generator().manual_seed(0)).to(next(model.parameters()))
    for name, layer in model.named_modules():
        start = f"{name}." if name else ""
        fits = isinstance(layer, nn.Linear) and {f"{start}weight", f"{start}bias"} <= sent.keys()
        if fits and _takes(model, layer, probe):
            return start
    return None


@torch.no_grad()
def _takes(model: nn.Module, layer: nn.Module, probe: Tensor) -> bool:
    """Return whether a layer is given the model's input as it is, but for its shape."""
    given: list[Tensor] = []
    hook = layer.register_forward_pre_hook(lambda _, inputs: given.append(inputs[0]))
    try:
        model(probe)
    finally:
        hook.remove()
    return any(torch.equal(x.flatten(), probe.flatten()) for x in given)


def exact(weight: Tensor, bias: Tensor) -> Tensor:
    """Return a candidate input for every unit that had a gradient, the one with the largest first."""
    strength = bias.abs()
    firing = strength > 1e-9 * strength.max().clamp(min=1e-30)
    order = torch.argsort(strength[firing], descending=True)
    return (weight[firing] / bias[firing, None])[order]


@dataclass(frozen=True)
class Search:
    """Looks for inputs whose gradient points as the one that was seen."""

    model: nn.Module
    loss: Callable[[Tensor, Tensor], Tensor]
    labels: Tensor
    low: float
    high: float
    steps: int = STEPS

    def inputs(self, seen: Gradients, shape: tuple[int, ...], seed: int, *purpose: str) -> Tensor:
        """Return the inputs that were found."""
        parameters = {n: p for n, p in self.model.named_parameters() if n in seen}
        for parameter in parameters.values():
            parameter.requires_grad_(True)
        goal = [seen[n].to(p) for n, p in parameters.items()]
        source = chance.generator(seed, "audit", "inversion", *purpose)
        guess = self.low + (self.high - self.low) * torch.rand(len(self.labels), *shape, generator=source)
        guess.requires_grad_(True)
        optimiser = torch.optim.Adam([guess], RATE * (self.high - self.low))
        falling = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, self.steps)
        for _ in range(self.steps):
            self._step(guess, list(parameters.values()), goal, optimiser)
            falling.step()
        return guess.detach()

    def _step(
        self, guess: Tensor, parameters: list[nn.Parameter], goal: list[Tensor], optimiser: torch.optim.Adam
    ) -> None:
        value = self.loss(self.model(guess), self.labels)
        made = torch.autograd.grad(value, parameters, create_graph=True, allow_unused=True)
        pairs = [(m, g) for m, g in zip(made, goal, strict=True) if m is not None]
        distance = cosine_distance([m for m, _ in pairs], [g for _, g in pairs]) + SMOOTH * roughness(guess)
        (slope,) = torch.autograd.grad(distance, [guess])
        guess.grad = slope.sign()
        optimiser.step()
        with torch.no_grad():
            guess.clamp_(self.low, self.high)


def cosine_distance(made: list[Tensor], goal: list[Tensor]) -> Tensor:
    """Return 1 - cos of two gradients, each over all tensors."""
    one, other = (torch.cat([t.flatten() for t in tensors]) for tensors in (made, goal))
    lengths = torch.linalg.vector_norm(one) * torch.linalg.vector_norm(other)
    return torch.sub(1, torch.dot(one, other) / lengths.clamp(min=1e-30))


def roughness(images: Tensor) -> Tensor:
    """Return the total variation of images; of anything else there is none."""
    if images.dim() != 4:
        return images.new_zeros(())
    across, down = images.diff(dim=3).abs().mean(), images.diff(dim=2).abs().mean()
    return across + down


def errors(guesses: Tensor, true: Tensor) -> list[float]:
    """Return for every true sample the mean square error of the nearest guess: nobody could choose better."""
    gaps = guesses.flatten(1).double()[None] - true.flatten(1).double()[:, None]
    return [float(e) for e in gaps.square().mean(2).min(1).values]


def decibels(error: float, span: float) -> float:
    """Return the peak signal-to-noise ratio of a mean square error."""
    return 10 * math.log10(span**2 / max(error, LEAST))
