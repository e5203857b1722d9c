"""The arithmetic of a model's passes: single precision, or bf16 where it multiplies and single precision elsewhere.

In bf16, torch's autocast rounds what convolutions and matrix products take and give to 8 bits of mantissa; their sums,
weights, statistics of norms, losses and descent stay in single precision. A model's outputs come back in it too.
"""

from __future__ import annotations

import platform
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

Precision = Literal["fp32", "bf16"]
PROBES = {"AMX": "_is_amx_tile_supported", "AVX512-BF16": "_is_avx512_bf16_supported"}
"""What x86 processors multiply bf16 numbers by, and which function of `torch.cpu` knows whether it is there."""


def arithmetic(precision: Precision, device: torch.device) -> AbstractContextManager[Any]:
    """Return a context in which passes on a device are computed so."""
    return nullcontext() if precision == "fp32" else torch.autocast(device.type, torch.bfloat16)


def computed(
    precision: Precision, device: torch.device, function: Callable[..., Any], *inputs: Any, **named: Any
) -> Any:
    """Call a function in this arithmetic; tensors that it gives come back in single precision."""
    if precision == "fp32":
        return function(*inputs, **named)
    with arithmetic(precision, device):
        return tree_map_only(Tensor, _single, function(*inputs, **named))


def _single(tensor: Tensor) -> Tensor:
    return tensor.float() if tensor.dtype == torch.bfloat16 else tensor


class Passes:
    """What stands in place of a model's `forward`: in training mode, passes are computed in the precision asked for."""

    def __init__(self, model: nn.Module, precision: Precision) -> None:
        self.model, self.forward, self.precision = model, model.forward, precision
        self.given = vars(model).get("forward")
        """A `forward` that was put on the model itself."""

    def __call__(self, *inputs: Any, **named: Any) -> Any:
        """Pass inputs through the model."""
        return self.through(self.forward, *inputs, **named)

    def through(self, function: Callable[..., Any], *inputs: Any, **named: Any) -> Any:
        """Pass inputs through a part of the model."""
        asked: Precision = self.precision if self.model.training else "fp32"
        device = next((p.device for p in self.model.parameters()), torch.device("cpu"))
        return computed(asked, device, function, *inputs, **named)


def train_in(model: nn.Module, precision: Precision) -> nn.Module:
    """Let a model be trained in this precision, by whoever calls it: in training mode, its passes are computed so."""
    if precision != "fp32":
        model.__dict__["forward"] = Passes(model, precision)
    return model


def as_usual(model: nn.Module) -> nn.Module:
    """Take back what `train_in` did."""
    if isinstance(passes := vars(model).get("forward"), Passes):
        del model.__dict__["forward"]
        model.__dict__ |= {} if passes.given is None else {"forward": passes.given}
    return model


def through(model: nn.Module, function: Callable[..., Any], *inputs: Any) -> Any:
    """Pass inputs through a part of a model (`model.encoder`), in the precision that the model is trained in."""
    passes = vars(model).get("forward")
    return passes.through(function, *inputs) if isinstance(passes, Passes) else function(*inputs)


def instructions(device: torch.device) -> str:
    """Return what a device multiplies bf16 numbers by; nothing, if it would have to emulate it.

    A graphics card is believed to: asking it would keep this process from forking workers.
    """
    if device.type == "cuda":
        return "CUDA"
    if device.type != "cpu":
        return ""
    for name, probe in PROBES.items():
        if getattr(torch.cpu, probe, bool)():
            return name
    arm = platform.machine() in ("aarch64", "arm64")
    return "ARM BF16" if arm and torch.ops.mkldnn._is_mkldnn_bf16_supported() else ""


def kind_of_machine(device: torch.device, *precisions: Precision) -> str:
    """Return what the last bits depend on, beside versions: the instructions that numbers are multiplied by."""
    if device.type != "cpu":
        return device.type
    usual = torch.backends.cpu.get_cpu_capability()
    if "bf16" not in precisions:
        return usual
    return instructions(device) or f"bf16 emulated by {usual}"
