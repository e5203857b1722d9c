"""Weights from files: safetensors, or a state dict, under other names if need be."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor, nn

from intarsia.core import SettingsError, suggest

Rename = Mapping[str, str] | Callable[[str], str | None]
"""From the file's names to the model's: a table, or a function (None: leave the tensor out)."""


def load_weights(
    model: nn.Module,
    source: Path | Mapping[str, Tensor],
    rename: Rename | None = None,
    where: str = "the weights given",
) -> list[str]:
    """Put weights into a model, in place, by name; return the model's tensors that the source does not have.

    An output layer of another size is left as it is. A source of which nothing fits, or a tensor of another
    shape elsewhere, is an error: it would pass off a random model as a trained one. `where` is what a source
    without a path is called in errors.
    """
    tensors = source if isinstance(source, Mapping) else read_safetensors(source)[1]
    where = where if isinstance(source, Mapping) else str(source)
    named = {new: t for old, t in tensors.items() if (new := _named(old, rename)) is not None}
    state = model.state_dict(keep_vars=True)
    fitting = {n: t for n, t in named.items() if n in state and t.shape == state[n].shape}
    if not any(isinstance(state[n], nn.Parameter) for n in fitting):
        some = next(iter(named), "nothing")
        raise SettingsError(
            f"{where} fits no weight of {type(model).__name__}: it has '{some}'{suggest(some, state)}"
        )
    head = head_of(state)
    for name, wanted in state.items():
        if name in named and name not in fitting and not name.startswith(head):
            raise SettingsError(
                f"{where}: '{name}' has shape {list(named[name].shape)}, the model wants {list(wanted.shape)}"
            )
    with torch.no_grad():
        for name, tensor in fitting.items():
            state[name].copy_(tensor)
    return [name for name in state if name not in fitting]


def head_of(state: Mapping[str, Tensor]) -> str:
    """Return what the names of the output layer's tensors begin with."""
    return next(reversed(list(state))).rpartition(".")[0] + "."


def initialise(model: nn.Module) -> None:
    """Draw the weights of convolutions for layers with ReLU (He et al. 2015)."""
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")


def read_safetensors(path: Path) -> tuple[bytes, dict[str, Tensor]]:
    """Return the content of a safetensors file, as bytes and as tensors."""
    try:
        data = path.read_bytes()
        return data, load(data)
    except FileNotFoundError:
        raise SettingsError(f"weights: there is no file {path}") from None
    except (OSError, SafetensorError) as error:
        raise SettingsError(f"weights: {path} is no safetensors file: {error}") from error


def _named(name: str, rename: Rename | None) -> str | None:
    if rename is None:
        return name
    return rename.get(name, name) if isinstance(rename, Mapping) else rename(name)
