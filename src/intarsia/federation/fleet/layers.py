"""The layers of a model that multiply: how often for a sample, and what their inputs depend on."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from intarsia.blocks import Cut
from intarsia.core import chance

Rehearse = Callable[[nn.Module, Tensor], None]
"""Passes inputs through all that a client computes with."""
SAMPLES = 2
"""How many samples are passed through: a norm over a batch needs more than one."""


@dataclass(frozen=True)
class Layer:
    """What one layer of a model needs for one sample."""

    block: str
    """The block that its weights belong to (empty: it has none, and multiplies what others give)."""
    multiplications: float
    trainable: bool
    behind: frozenset[str]
    """The blocks that its input depends on."""

    def back(self, trained: Collection[str], frozen_too: bool = False) -> int:
        """Return how many times its multiplications the way back takes, where these blocks are trained."""
        before = bool(self.behind & set(trained))
        own = self.block in trained and (self.trainable or frozen_too) if self.block else before
        return own + before


def layers_of(model: nn.Module, cut: Cut, shape: tuple[int, ...], rehearse: Rehearse) -> list[Layer]:
    """Return the layers that multiply, in the order in which they are first used."""
    model = copy.deepcopy(model).to("cpu").train()
    block_of = {name: block for block, own in cut.fit(model).members.items() for name in own}
    frozen = {name for name, weight in model.named_parameters() if not weight.requires_grad}
    model.requires_grad_(True)  # what inputs depend on is seen by the gradients that they would have
    counts, behind = _counted(model, shape, rehearse)
    layers: list[Layer] = []
    for name, count in counts.items():
        own = [f"{name}.{w}" if name else w for w, _ in _weights(model, name)]
        block = next((block_of[weight] for weight in own if weight in block_of), "")
        earlier = {layer.block for layer in layers if layer.block}
        before = {block_of[weight] for weight in behind.get(name, ()) if weight in block_of}
        trainable = any(weight not in frozen for weight in own)
        layers.append(Layer(block, count, trainable, frozenset(before if block else earlier)))
    return layers


def _weights(model: nn.Module, name: str) -> Iterator[tuple[str, nn.Parameter]]:
    return model.get_submodule(name).named_parameters(recurse=False)


def _counted(
    model: nn.Module, shape: tuple[int, ...], rehearse: Rehearse
) -> tuple[dict[str, float], dict[str, set[str]]]:
    """Return the multiplications of one sample by module, those inside taken out; and what inputs depend on."""
    try:
        counted, behind = _rehearsed(model, torch.zeros(SAMPLES, *shape), rehearse)
    except (RuntimeError, TypeError, IndexError):  # words, not numbers
        counted, behind = _rehearsed(model, torch.zeros(SAMPLES, *shape, dtype=torch.long), rehearse)
    # One multiplication with its addition counts as two operations there; the model itself is called by its class.
    root = type(model).__name__
    whole = {
        path.removeprefix(root).removeprefix("."): sum(operations.values()) / 2 / SAMPLES
        for path, operations in counted.items()
        if path != "Global"
    }
    return {name: own for name, count in whole.items() if (own := count - _inside(name, whole)) > 0}, behind


def _rehearsed(
    model: nn.Module, x: Tensor, rehearse: Rehearse
) -> tuple[Mapping[str, Mapping[Any, int]], dict[str, set[str]]]:
    """Pass inputs through a model; return operations by module and kind, and the weights behind each module's input."""
    counter = FlopCounterMode(display=False)
    with warnings.catch_warnings(), chance.torch_seeded(0, "multiplications"), _watching(model) as behind:
        warnings.simplefilter("ignore")
        with torch.backends.mkldnn.flags(enabled=False), counter:  # there a recurrent layer is one, uncounted
            rehearse(model, x)
    return counter.get_flop_counts(), behind


@contextmanager
def _watching(model: nn.Module) -> Iterator[dict[str, set[str]]]:
    """Note, by module, which weights its inputs depend on."""
    names = {id(weight): name for name, weight in model.named_parameters()}
    behind: dict[str, set[str]] = {}

    def note(name: str, given: object) -> None:
        tensors = [leaf for leaf in tree_leaves(given) if isinstance(leaf, Tensor)]
        behind.setdefault(name, set()).update(*(_sources(tensor, names) for tensor in tensors))

    hooks = [
        module.register_forward_pre_hook(lambda _, given, name=name: note(name, given))
        for name, module in model.named_modules()
    ]
    try:
        yield behind
    finally:
        for hook in hooks:
            hook.remove()


def _sources(tensor: Tensor, names: Mapping[int, str]) -> set[str]:
    """Return the weights that a tensor was made of."""
    found: set[str] = set()
    waiting, seen = [tensor.grad_fn], set()
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        name = names.get(id(getattr(node, "variable", None)))
        found |= set() if name is None else {name}
        waiting += [following for following, _ in node.next_functions]
    return found


def _inside(path: str, whole: Mapping[str, float]) -> float:
    """Return what is counted in the modules right below one."""
    below = [other for other in whole if other != path and other.startswith(f"{path}." if path else "")]
    nearest = [o for o in below if not any(o.startswith(f"{between}.") for between in below)]
    return sum(whole[other] for other in nearest)
