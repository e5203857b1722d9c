"""Models as chains of functional blocks that can be told apart, compared and put together anew."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor, fx, nn
from torch.nn.modules.batchnorm import _NormBase

from intarsia.core import CutError, chance
from intarsia.models.spec import Shape

FOLLOWERS = (_NormBase, nn.LayerNorm, nn.GroupNorm, nn.PReLU)
"""Layers with tensors that belong to the block before them."""
BROKEN = (RuntimeError, ValueError, TypeError, IndexError, KeyError, AttributeError)
"""What a forward raises that does not take what it is given."""
Layers = list[tuple[str, nn.Module]]


class Cost(NamedTuple):
    """What a model, or a part of one, needs."""

    parameters: int = 0
    macs: int = 0
    """Multiplications with addition for one sample."""
    activations: int = 0
    """Values that convolutions and linear layers give for one sample: training keeps them in memory."""


def total(costs: Iterable[Cost]) -> Cost:
    """Return what several parts need together."""
    return Cost(*map(sum, zip(*costs, strict=True)))


@dataclass(frozen=True)
class Ref:
    """A block of a model: the model's key, and the block's place in its chain (from 0)."""

    model: str
    index: int


@dataclass(frozen=True)
class FunctionalBlock:
    """A block of a model with its place and shapes; its layers are the model's own, not copies.

    A block is a convolution with its norm, activation and pooling; a fully connected layer with its activation;
    or a unit with a forward of its own, such as a residual one. An `fc` block works on vectors, a `conv` block on
    maps (channels, height, width).
    """

    index: int
    name: str
    kind: Literal["conv", "fc"]
    module: nn.Sequential
    takes: Shape
    gives: Shape
    cost: Cost

    @property
    def entry(self) -> Shape:
        """What a stitch before this block must give: a map, or a vector for an `fc` block."""
        return (math.prod(self.takes),) if self.kind == "fc" else self.takes


Chain = tuple[FunctionalBlock, ...]
Chains = Mapping[str, Chain]
"""Chains by the key of their model."""


def block_of(chains: Chains, ref: Ref) -> FunctionalBlock:
    """Return the block that is meant; an unknown one is an error."""
    if ref.model not in chains or not 0 <= ref.index < len(chains[ref.model]):
        raise CutError(f"there is no block {ref.index} of model '{ref.model}' among: {', '.join(chains)}")
    return chains[ref.model][ref.index]


def decompose(model: nn.Module, shape: Shape) -> Chain:
    """Return the model's functional blocks in order; running them one after the other is the model.

    Its forward must run layers one after the other and do nothing else. Nested `nn.Sequential`s are opened, other
    modules stay whole. A trial pass with inputs of this shape finds the shapes in between. Blocks are compared and
    frozen, never trained, so the model is put into evaluation mode.
    """
    layers = _layers(model.eval())
    x = torch.rand(2, *shape, generator=chance.generator(0, "decompose", *shape))
    with torch.no_grad():
        return tuple(_blocks(model, _pieces(model, layers), x.to(next(model.parameters(), x))))


class _InOrder(fx.Tracer):
    """Looks at the layers that a forward calls: into `nn.Sequential`, not into units with a forward of their own."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return not isinstance(m, nn.Sequential) or type(m).forward is not nn.Sequential.forward


def _layers(model: nn.Module) -> Layers:
    """Return the layers that a model runs one after the other, by name."""
    for name, module in model.named_modules():
        if isinstance(module, nn.RNNBase | nn.RNNCellBase):
            raise _error(
                model, f"'{name or type(module).__name__}' is recurrent, and its steps share one state"
            )
    try:
        last, *calls = _InOrder().trace(model).nodes
    except BROKEN as error:
        raise _error(model, f"its forward cannot be followed ({error})") from error
    for call in calls:
        if call.op not in ("call_module", "output") or call.args != (last,) or call.kwargs:
            raise _error(model, f"its forward does more than run layers in order: '{call.name}'")
        last = call
    return [(str(call.target), model.get_submodule(str(call.target))) for call in calls[:-1]]


def _pieces(model: nn.Module, layers: Layers) -> list[Layers]:
    """Gather layers into blocks: each has one layer that starts it, and what belongs to that."""
    pieces: list[Layers] = []
    waiting: Layers = []
    for name, layer in layers:
        if _starts(layer):
            pieces.append([*waiting, (name, layer)])
            waiting = []
        elif waiting or not pieces or isinstance(layer, nn.Flatten):
            waiting.append((name, layer))
        else:
            pieces[-1].append((name, layer))
    if not pieces:
        raise _error(model, "it has no layer with weights")
    pieces[-1] += waiting
    return pieces


def _starts(layer: nn.Module) -> bool:
    return not isinstance(layer, FOLLOWERS) and len(layer.state_dict()) > 0


def _blocks(model: nn.Module, pieces: list[Layers], x: Tensor) -> Iterator[FunctionalBlock]:
    """Run the pieces one after the other and note what they take, give and need."""
    for index, piece in enumerate(pieces):
        start = next(place for place, (_, layer) in enumerate(piece) if _starts(layer))
        name, module = piece[start][0], nn.Sequential(*(layer for _, layer in piece)).eval()
        takes = tuple(x.shape[1:])
        try:
            x, cost = _counted(module, x.clone())
            gives = tuple(x.shape[1:])
        except BROKEN as error:
            raise _error(model, f"'{name}' does not turn {list(takes)} into one tensor ({error})") from error
        if {len(takes), len(gives)} - {1, 3}:
            raise _error(
                model, f"'{name}' takes {list(takes)} and gives {list(gives)}, neither maps nor vectors"
            )
        flat = len(takes) == 1 or any(isinstance(layer, nn.Flatten) for _, layer in piece[:start])
        yield FunctionalBlock(index, name, "fc" if flat else "conv", module, takes, gives, cost)


def _counted(module: nn.Module, x: Tensor) -> tuple[Tensor, Cost]:
    """Run a module; return what it gives, and what it needs for one sample."""
    costs = [Cost(sum(p.numel() for p in module.parameters()))]

    def count(layer: nn.Module, _: object, y: Tensor) -> None:
        # Each value of the output needs one multiplication for every weight of its output channel.
        weights = layer.get_parameter("weight")[0].numel()
        costs.append(Cost(0, y[0].numel() * weights, y[0].numel()))

    hooks = [m.register_forward_hook(count) for m in module.modules() if isinstance(m, nn.Conv2d | nn.Linear)]
    try:
        return module(x), total(costs)
    finally:
        for hook in hooks:
            hook.remove()


def _error(model: nn.Module, why: str) -> CutError:
    return CutError(
        f"{type(model).__name__} cannot be cut into functional blocks: {why}; write it as a nn.Sequential whose layers "
        "run in order (nn.Flatten and activations too), each on maps (channels, height, width) or vectors"
    )
