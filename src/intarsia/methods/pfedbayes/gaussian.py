"""Networks whose weights are Gaussian: a mean and a deviation for each."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn import functional

from intarsia.core import SettingsError

RHO = "_rho"
"""Ends the name of the parameter that a deviation comes from: sigma = log(1 + exp(rho))."""


class Gaussian(nn.Module):
    """A layer whose weight and bias are drawn anew in every pass; in evaluation mode they are their means."""

    drawing: bool = False
    """Whether weights are drawn in evaluation mode, too."""

    def become_gaussian(self, rho: float) -> None:
        """Give every parameter a deviation."""
        for name, mean in list(self.named_parameters(recurse=False)):
            self.register_parameter(name + RHO, nn.Parameter(torch.full_like(mean, rho)))

    @torch.no_grad()
    def plain(self) -> nn.Module:
        """Return a layer whose weights are the means."""
        layer = copy.deepcopy(self)
        for name in [name for name, _ in layer.named_parameters(recurse=False) if name.endswith(RHO)]:
            delattr(layer, name)
        layer.__class__ = next(kind for kind, own in KINDS.items() if own is type(self))  # type: ignore[assignment]
        return layer

    def drawn(self) -> tuple[Tensor, Tensor | None]:
        """Return weight and bias as this pass has them."""
        return self._draw("weight"), None if self.bias is None else self._draw("bias")

    def _draw(self, name: str) -> Tensor:
        mean = self.get_parameter(name)
        if not (self.training or self.drawing):
            return mean
        return mean + functional.softplus(self.get_parameter(name + RHO)) * torch.randn_like(mean)


class GaussianLinear(Gaussian, nn.Linear):
    """A linear layer with Gaussian weights."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the layer's values with weights of this pass."""
        return functional.linear(x, *self.drawn())


class GaussianConv2d(Gaussian, nn.Conv2d):
    """A convolution with Gaussian weights."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the layer's values with weights of this pass."""
        values: Tensor = self._conv_forward(x, *self.drawn())
        return values


KINDS: dict[type[nn.Module], type[Gaussian]] = {nn.Linear: GaussianLinear, nn.Conv2d: GaussianConv2d}


class Averaged(nn.Module):
    """A Gaussian classifier that predicts, in evaluation mode, by the mean probabilities of some draws.

    The outputs are then logarithms of probabilities. Draws come from torch's own generator.
    """

    def __init__(self, network: nn.Module, draws: int) -> None:
        super().__init__()
        self.network = network
        self.draws = draws

    def plain(self) -> nn.Module:
        """Return the network itself, which predicts by the means of its weights."""
        return self.network

    def forward(self, x: Tensor) -> Tensor:
        """Return one draw's outputs in training, the mean over draws in evaluation."""
        if self.training:
            outputs: Tensor = self.network(x)
            return outputs
        with _drawing(self.network):
            each = torch.stack([self.network(x.clone()).log_softmax(1) for _ in range(self.draws)])
        return torch.logsumexp(each, 0) - math.log(self.draws)


def gaussian(model: nn.Module, rho: float) -> nn.Module:
    """Return a copy with Gaussian linear layers and convolutions; their means are the weights of the model.

    Layers that are frozen stay as they are; other layers with trainable parameters are an error.
    """
    made = copy.deepcopy(model)
    if not any(weight.requires_grad for weight in made.parameters()):
        raise SettingsError(f"{type(model).__name__} has no trainable layer that could be Gaussian")
    for name, layer in made.named_modules():
        own = list(layer.parameters(recurse=False))
        if not any(weight.requires_grad for weight in own):
            continue
        if type(layer) not in KINDS or not all(weight.requires_grad for weight in own):
            raise SettingsError(
                f"{type(model).__name__} has no Gaussian form: '{name or type(layer).__name__}' is {layer}, and only "
                "linear layers and 2-d convolutions (whole, not partly frozen) have one; choose a model of these, "
                "without norms that have weights"
            )
        layer.__class__ = KINDS[type(layer)]
        assert isinstance(layer, Gaussian)
        layer.become_gaussian(rho)
    return made


def kl_divergence(q: Mapping[str, Tensor], p: Mapping[str, Tensor]) -> Tensor:
    """Return KL(q || p) of two diagonal Gaussians given by means and rhos, by name.

    For each weight: log(s_p / s_q) + (s_q^2 + (m_q - m_p)^2) / (2 s_p^2) - 1/2.
    """
    total = torch.zeros(())
    for name in q:
        if name + RHO not in q:
            continue
        s_q, s_p = functional.softplus(q[name + RHO]), functional.softplus(p[name + RHO])
        distance = s_q.square() + (q[name] - p[name]).square()
        total = total.to(s_q) + ((s_p / s_q).log() + distance / (2 * s_p.square()) - 0.5).sum()
    return total


@contextmanager
def _drawing(network: nn.Module) -> Iterator[None]:
    layers = [layer for layer in network.modules() if isinstance(layer, Gaussian)]
    for layer in layers:
        layer.drawing = True
    try:
        yield
    finally:
        for layer in layers:
            layer.drawing = False
