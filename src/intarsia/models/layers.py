"""A model's layers, as far as two models can have them in common."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor, nn

from intarsia.blocks import Cut


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
