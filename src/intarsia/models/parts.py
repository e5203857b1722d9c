"""A model's parts and layers, from its input to its output: where it can be cut, and what two models have in common."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor, nn

from intarsia.blocks import Cut

Parts = Mapping[str, Sequence[str]]
"""Patterns by part name, ordered from the input to the output."""


def parts_of(model: nn.Module) -> Parts:
    """Return the model's parts: its attribute `parts`, or else its children that hold tensors, in order.

    A model whose children are not in the order of its computation, or that has tensors of its own
    beside them, says so with an attribute `parts = {"features": ["features.*"], "head": ["head.*"]}`.
    """
    named = getattr(model, "parts", None)
    if named is not None:
        return {name: (p,) if isinstance(p, str) else tuple(p) for name, p in named.items()}
    return {name: (f"{name}.*",) for name, child in model.named_children() if len(child.state_dict()) > 0}


@dataclass(frozen=True)
class Layer:
    """A module that holds tensors: their names, and all that another layer must be like to be the same."""

    tensors: tuple[str, ...]
    form: str


def layers_of(model: nn.Module) -> list[Layer]:
    """Return the layers that hold tensors, in the order in which the model names them: from input to output.

    Two layers have the same form if they have the same type, settings and place in the model, and tensors of the
    same shapes. Layers without tensors, such as activations, do not count.
    """
    members: dict[str, list[str]] = {}
    for name in Cut.whole().fit(model).flat():
        members.setdefault(name.rpartition(".")[0], []).append(name)
    state = model.state_dict(keep_vars=True)
    return [Layer(tuple(own), _form(model, path, own, state)) for path, own in members.items()]


def _form(model: nn.Module, path: str, names: list[str], state: Mapping[str, Tensor]) -> str:
    module = model.get_submodule(path)
    tensors = [f"{n} {list(state[n].shape)} {state[n].dtype} {state[n].requires_grad}" for n in names]
    return f"{type(module).__name__}({module.extra_repr()}): {', '.join(tensors)}"
