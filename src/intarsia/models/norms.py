"""Batch norms: which of their tensors may stay with a client."""

from __future__ import annotations

from typing import Literal

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

Norms = Literal["shared", "statistics", "home"]


def norms_at_home(model: nn.Module, norms: Norms) -> set[str]:
    """Return the names of the tensors of batch norms that stay with the client."""
    if norms == "shared":
        return set()
    names: set[str] = set()
    for path, module in model.named_modules():
        if isinstance(module, _BatchNorm):
            own = dict(module.named_buffers())
            own |= {} if norms == "statistics" else dict(module.named_parameters())
            names |= {f"{path}.{name}" if path else name for name in own}
    return names
