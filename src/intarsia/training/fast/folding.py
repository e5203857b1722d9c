"""Linear layers whose descent is folded into the backward pass: their gradients are never written to memory.

A large linear layer on a small batch is bound by memory: a step reads the weights twice and would then write a
gradient of their size, read it and change the weights by it. Here the one multiplication that makes the gradient
changes the weights. Same mathematics: plain SGD, with or without weight decay. In bf16 the layer multiplies by a
rounded copy of its weights, made anew right after each step, while they are in the cache; gradients are not rounded.
"""

from __future__ import annotations

import contextlib
import copy
from collections import Counter
from collections.abc import Iterator
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.fx import Tracer
from torch.nn import functional

from intarsia.training.descent import Descent

LARGE = 1 << 16
"""Weights that a layer must have: smaller ones gain nothing."""


@contextlib.contextmanager
def folded(model: nn.Module, descent: Descent) -> Iterator[None]:
    """Within, a backward pass changes the weights of those layers that allow it; what it changes has no gradient."""
    training, lr = descent.training, descent.lr
    simple = training.optimizer == "sgd" and not training.momentum and descent.objective.form == "loss"
    layers = foldable(model) if simple and not training.plain else []
    for layer in layers:
        used = layer.weight.detach()
        used = used if training.precision == "fp32" else used.bfloat16()
        layer.__dict__["forward"] = partial(_forward, layer, used, lr, 1 - lr * training.weight_decay)
    try:
        yield
    finally:
        for layer in layers:
            del layer.__dict__["forward"]


def foldable(model: nn.Module) -> list[nn.Linear]:
    """Return the large, trained linear layers that a pass uses once, and whose weights nothing else uses.

    Which layers a pass uses is looked up once a model, as the model then is, and kept.
    """
    if model not in _used_once:
        _used_once[model] = _find(model)
    return [layer for layer in _used_once[model] if all(w.requires_grad for w in layer.parameters())]


_used_once: WeakKeyDictionary[nn.Module, list[nn.Linear]] = WeakKeyDictionary()


def _find(model: nn.Module) -> list[nn.Linear]:
    """Look for such layers, trained or not; of a model that cannot be traced nothing is known."""
    names = Counter(id(weight) for _, weight in model.named_parameters(remove_duplicate=False))
    layers = {
        name: module
        for name, module in model.named_modules()
        if name
        and type(module) is nn.Linear
        and module.weight.numel() >= LARGE
        and all(names[id(weight)] == 1 for weight in module.parameters())
    }
    if not layers or any(hooked(module) for module in model.modules()):
        return []
    used = _trace(model)
    return [
        module
        for name, module in layers.items()
        if used[name] == 1 and not any(used[f"{name}.{weight}"] for weight, _ in module.named_parameters())
    ]


def _trace(model: nn.Module) -> Counter[str]:
    """Return how often a training pass uses each layer, and each weight by itself; nothing if the data decide that.

    A copy is traced: a model may keep something of a pass.
    """
    try:
        with torch.random.fork_rng(devices=[]):
            graph = Tracer().trace(copy.deepcopy(model).train())
    except Exception:  # noqa: BLE001 - a user's model may do anything in a pass, and raise anything
        return Counter()
    return Counter(str(node.target) for node in graph.nodes if node.op in ("call_module", "get_attr"))


def hooked(module: nn.Module) -> bool:
    """Return whether a module does more than its kind says."""
    return bool(module._forward_hooks or module._forward_pre_hooks or module._backward_hooks)


def _forward(layer: nn.Linear, used: Tensor, lr: float, shrink: float, x: Tensor) -> Tensor:
    """Fold where something before the layer is trained too: else no gradient passes by."""
    if x.dim() == 2 and x.requires_grad:
        own = (layer.weight.detach(), _detached(layer.bias))
        result: Tensor = _Folded.apply(x, *own, used, lr, shrink)  # type: ignore[no-untyped-call]
        return result
    return functional.linear(x, layer.weight, layer.bias)


def _detached(bias: Tensor | None) -> Tensor | None:
    return None if bias is None else bias.detach()


class _Folded(torch.autograd.Function):
    """A linear layer; going back it passes the gradient of its input on, and takes its own step.

    `used` is what it multiplies by: the weight itself, or a rounded copy, which follows it.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, used: Tensor, lr: float, shrink: float
    ) -> Tensor:
        x = x.to(used.dtype)
        ctx.save_for_backward(x)
        ctx.weight, ctx.bias, ctx.used, ctx.lr, ctx.shrink = weight, bias, used, lr, shrink
        return functional.linear(x, used, None if bias is None else bias.to(used.dtype))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None, None, None]:
        (x,), (grad,), weight = ctx.saved_tensors, grads, ctx.weight
        passed_on = grad @ ctx.used
        x, grad = x.to(weight.dtype), grad.to(weight.dtype)
        weight.addmm_(grad.t(), x, beta=ctx.shrink, alpha=-ctx.lr)
        if ctx.used.dtype != weight.dtype:
            ctx.used.copy_(weight)
        if ctx.bias is not None:
            ctx.bias.mul_(ctx.shrink).sub_(grad.sum(0), alpha=ctx.lr)
        return passed_on, None, None, None, None, None
