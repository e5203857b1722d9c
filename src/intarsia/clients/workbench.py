"""One model object an architecture, filled for each client in turn."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from intarsia.blocks import Block, FittedCut
from intarsia.training import as_usual, usual_layout


@dataclass(frozen=True)
class Workbench:
    """One model object per architecture, filled in place for each client in turn."""

    model: nn.Module
    fitted: FittedCut
    trainable: frozenset[str]
    channels_last: bool
    scratch: Mapping[str, Tensor]
    """Buffers that are no part of the state, as they were at the beginning."""
    attributes: Mapping[nn.Module, Mapping[str, Any]]
    """Attributes of a given model's modules, as they were at the beginning."""
    weights: Sequence[tuple[str, nn.Parameter]] = ()
    """The parameters by name, of a model that is not given: nothing but training changes it."""

    def fill(self, blocks: Mapping[str, Block]) -> None:
        """Give the model a client's blocks; what the last client left elsewhere in it must not reach this one."""
        self.fitted.fill(blocks)
        for module, before in self.attributes.items():
            for name in own_attributes(module).keys() - before.keys():
                delattr(module, name)
            vars(module).update(values_apart(before))
        for name, tensor in self.scratch.items():
            path, _, leaf = name.rpartition(".")
            self.model.get_submodule(path)._buffers[leaf] = tensor.clone()


def own_attributes(module: nn.Module) -> dict[str, Any]:
    """Return what a module's own code may have set: neither tensors of its state nor what torch keeps there."""
    return {k: v for k, v in vars(module).items() if not k.startswith("_") and k != "training"}


def values_apart(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Return attributes that later changes in place do not reach: copies of tensors and of plain containers."""
    return {name: _apart(value) for name, value in attributes.items()}


def _apart(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.detach().clone()
    return copy.copy(value) if isinstance(value, (list, dict, set)) else value


def taken_out(bench: Workbench) -> nn.Module:
    """Return the model on the bench as one of its own."""
    model = as_usual(copy.deepcopy(bench.model)).to("cpu").eval()
    for name, weight in model.named_parameters():
        weight.requires_grad_(name in bench.trainable)
    return usual_layout(model)


def resolve_device(name: str) -> torch.device:
    """Return the device of a name; `auto` takes the first accelerator there is."""
    if name != "auto":
        return torch.device(name)
    if torch.cuda.is_available():
        return torch.device("cuda")
    return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
