"""Batch norms: which of their tensors may stay with a client, and statistics that are taken at the end."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import torch
from torch import Tensor, nn
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


def make_static(model: nn.Module) -> None:
    """Let batch norms go by the batch while they train and leave their running statistics alone."""
    for norm in _norms(model):
        norm.momentum = 0.0


@torch.no_grad()
def fit_statistics(model: nn.Module, batches: Iterable[Tensor]) -> None:
    """Set the running statistics of static batch norms to the mean of those of these batches.

    Everything else is in evaluation mode meanwhile, and in the end so are the norms. A batch of one says nothing.
    """
    norms = _norms(model)
    model.eval()
    if not norms:
        return
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None
        norm.train()
    for x in batches:
        if len(x) > 1:
            model(x)
    make_static(model)
    model.eval()


def refit_statistics(model: nn.Module, batches: Iterable[Tensor]) -> None:
    """Take the running statistics of batch norms anew, as the mean over these batches; the norms go on as before.

    One that no batch passes keeps what it has.
    """
    before = [
        (norm, norm.momentum, {n: b.clone() for n, b in norm.named_buffers()}) for norm in _norms(model)
    ]
    fit_statistics(model, batches)
    for norm, momentum, buffers in before:
        norm.momentum = momentum
        if not norm.num_batches_tracked:
            norm.load_state_dict({**norm.state_dict(), **buffers})


def _norms(model: nn.Module) -> list[_BatchNorm]:
    return [m for m in model.modules() if isinstance(m, _BatchNorm) and m.track_running_stats]
