"""Linear layers whose descent is folded into the backward pass: their gradients are never written to memory.

A large linear layer on a small batch is bound by memory: a step reads the weights twice and would then write a
gradient of their size, read it and change the weights by it. Here the one multiplication that makes the gradient
changes the weights. Same mathematics: plain SGD, with or without weight decay.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from intarsia.training.objectives import Objective
from intarsia.training.settings import Training


@contextlib.contextmanager
def folded(model: nn.Module, objective: Objective, training: Training, lr: float) -> Iterator[None]:
    """Within, a backward pass changes the weights of those layers that allow it; what it changes has no gradient."""
    simple = training.optimizer == "sgd" and not training.momentum and type(objective) is Objective
    layers = foldable(model) if simple and not training.plain else []
    for layer in layers:
        layer.__dict__["forward"] = partial(_forward, layer, lr, 1 - lr * training.weight_decay)
    try:
        yield
    finally:
        for layer in layers:
            del layer.__dict__["forward"]


def foldable(model: nn.Module) -> list[nn.Linear]:
    """Return the trained linear layers that a chain of torch's own layers has, each used once in a pass.

    Only of such a chain it is known that nothing else uses a layer's weights.
    """
    parts = _chain(model)
    weights = [id(weight) for part in parts or [] for weight in part.parameters()]
    if parts is None or len(set(weights)) != len(weights) or len({id(part) for part in parts}) != len(parts):
        return []
    return [
        part
        for part in parts
        if type(part) is nn.Linear and all(weight.requires_grad for weight in part.parameters())
    ]


def _chain(model: nn.Module) -> list[nn.Module] | None:
    """Return the layers of (nested) `nn.Sequential`s in order; None for any other model."""
    if type(model) is not nn.Sequential:
        own = type(model).__module__.startswith("torch.nn.modules.")
        plain = own and not (model._forward_hooks or model._forward_pre_hooks or model._backward_hooks)
        return [model] if plain else None
    parts: list[nn.Module] = []
    for child in model:
        below = _chain(child)
        if below is None:
            return None
        parts += below
    return parts


def _forward(layer: nn.Linear, lr: float, shrink: float, x: Tensor) -> Tensor:
    """Fold where something before the layer is trained too: else no gradient passes by."""
    if x.dim() == 2 and x.requires_grad:
        result: Tensor = _Folded.apply(x, layer.weight.detach(), _detached(layer.bias), lr, shrink)  # type: ignore[no-untyped-call]
        return result
    return functional.linear(x, layer.weight, layer.bias)


def _detached(bias: Tensor | None) -> Tensor | None:
    return None if bias is None else bias.detach()


class _Folded(torch.autograd.Function):
    """A linear layer; going back it passes the gradient of its input on, and takes its own step."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, lr: float, shrink: float) -> Tensor:
        ctx.save_for_backward(x)
        ctx.weight, ctx.bias, ctx.lr, ctx.shrink = weight, bias, lr, shrink
        return functional.linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None, None]:
        (x,), (grad,) = ctx.saved_tensors, grads
        passed_on = grad @ ctx.weight
        ctx.weight.addmm_(grad.t(), x, beta=ctx.shrink, alpha=-ctx.lr)
        if ctx.bias is not None:
            ctx.bias.mul_(ctx.shrink).sub_(grad.sum(0), alpha=ctx.lr)
        return passed_on, None, None, None, None
