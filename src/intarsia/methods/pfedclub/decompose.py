"""Models as chains of functional blocks that can be told apart, compared and put together anew."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from intarsia.core import CutError, chance
from intarsia.models.parts import parts_of
from intarsia.models.spec import Shape

Kind = Literal["conv", "fc"]

RECURRENT = (nn.RNNBase, nn.RNNCellBase)
NORMS = (_NormBase, nn.LayerNorm, nn.GroupNorm)
FOLLOWERS = (*NORMS, nn.PReLU)
"""Layers with tensors that belong to the block before them."""


@dataclass(frozen=True, order=True)
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
    kind: Kind
    module: nn.Sequential
    takes: Shape
    gives: Shape
    parameters: int
    macs: int
    """Multiplications with addition for one sample."""
    activations: int
    """Values that its convolutions and linear layers give for one sample."""

    @property
    def entry(self) -> Shape:
        """What a stitch before this block must give: a map, or a vector for an `fc` block."""
        return (math.prod(self.takes),) if self.kind == "fc" else self.takes

    def fits(self, shape: Shape) -> bool:
        """Say whether values of this shape can go in as they are."""
        return shape in (self.takes, self.entry)


Chain = tuple[FunctionalBlock, ...]
Chains = Mapping[str, Chain]
"""Chains by the key of their model."""


def decompose(model: nn.Module, shape: Shape) -> Chain:
    """Return the model's functional blocks in order; running them one after the other is the model.

    A `nn.Sequential` runs its layers in order. Any other model must do the same with its parts (its attribute
    `parts`, or else its children); a trial pass with inputs of this shape checks that. Nested `nn.Sequential`s are
    opened, other modules with tensors stay whole.
    """
    _refuse_recurrent(model)
    layers = list(_flat(_children(model)))
    pieces = _pieces(layers, type(model).__name__)
    _refuse_loose(model, layers)
    with in_eval(model), torch.no_grad():
        x = torch.rand(2, *shape, generator=chance.generator(0, "decompose", *shape))
        x = x.to(next(model.parameters(), x))
        blocks, y = _trial(pieces, x, model)
        _check_equal(model, x, y)
    return tuple(blocks)


def refs(chains: Chains) -> tuple[Ref, ...]:
    """Return every block of these models, model by model."""
    return tuple(Ref(key, block.index) for key, chain in chains.items() for block in chain)


def block_of(chains: Chains, ref: Ref) -> FunctionalBlock:
    """Return the block that is meant; an unknown one is an error."""
    if ref.model not in chains or not 0 <= ref.index < len(chains[ref.model]):
        raise CutError(f"there is no block {ref.index} of model '{ref.model}' among: {', '.join(chains)}")
    return chains[ref.model][ref.index]


@contextlib.contextmanager
def in_eval(*modules: nn.Module) -> Iterator[None]:
    """Put modules into evaluation mode, and back into the modes that they were in."""
    before = {m: m.training for module in modules for m in module.modules()}
    for module in modules:
        module.eval()
    try:
        yield
    finally:
        for module, mode in before.items():
            module.training = mode


def _refuse_recurrent(model: nn.Module) -> None:
    for name, module in model.named_modules():
        if isinstance(module, RECURRENT):
            raise CutError(
                f"{type(model).__name__} cannot be cut into functional blocks: '{name or type(module).__name__}' is "
                "recurrent, and its steps share one state; give clients of this method networks without recurrence"
            )


def _refuse_loose(model: nn.Module, layers: Sequence[tuple[str, nn.Module]]) -> None:
    """Refuse weights that are in no layer: at the start they may change nothing, and later they do."""
    held = {id(p) for _, layer in layers for p in layer.parameters()}
    loose = [name for name, p in model.named_parameters() if id(p) not in held]
    if loose:
        raise CutError(_order(model, f"the weights '{loose[0]}' are in none of its parts"))


def _children(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """Return what a model runs, in order, by name."""
    if _runs_in_order(model) or getattr(model, "parts", None) is None:
        return _own(model)
    named = []
    for patterns in parts_of(model).values():
        for pattern in patterns:
            named.append(_submodule(model, pattern.removesuffix(".*")))
    return named


def _own(module: nn.Module) -> list[tuple[str, nn.Module]]:
    """Return a module's children by name, one that stands at several places at each of them."""
    return [(name, child) for name, child in module._modules.items() if child is not None]


def _submodule(model: nn.Module, name: str) -> tuple[str, nn.Module]:
    try:
        return name, model.get_submodule(name)
    except AttributeError:
        raise CutError(
            f"{type(model).__name__}.parts names '{name}', which is no module of it: functional blocks need parts that "
            "are whole modules, such as 'features.*'"
        ) from None


def _runs_in_order(module: nn.Module) -> bool:
    return isinstance(module, nn.Sequential) and type(module).forward is nn.Sequential.forward


def _flat(children: Iterable[tuple[str, nn.Module]], before: str = "") -> Iterator[tuple[str, nn.Module]]:
    for name, child in children:
        if _runs_in_order(child):
            yield from _flat(_own(child), f"{before}{name}.")
        else:
            yield f"{before}{name}", child


Layers = list[tuple[str, nn.Module]]


def _pieces(layers: Sequence[tuple[str, nn.Module]], model: str) -> list[Layers]:
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
        raise CutError(f"{model} has no layer with weights, so it has no functional blocks")
    pieces[-1] += waiting
    return pieces


def _starts(layer: nn.Module) -> bool:
    return not isinstance(layer, FOLLOWERS) and len(layer.state_dict()) > 0


def _trial(pieces: list[Layers], x: Tensor, model: nn.Module) -> tuple[list[FunctionalBlock], Tensor]:
    """Run the pieces one after the other and note what they take and give."""
    blocks = []
    for index, piece in enumerate(pieces):
        name = next(name for name, layer in piece if _starts(layer))
        module = nn.Sequential(*(layer for _, layer in piece))
        module.train(False)
        try:
            y, work = _counted(module, x.clone())
        except (RuntimeError, ValueError, TypeError, IndexError, AttributeError) as error:
            raise CutError(_order(model, f"'{name}' does not take {list(x.shape[1:])} ({error})")) from error
        if not isinstance(y, Tensor):
            raise CutError(_order(model, f"'{name}' gives a {type(y).__name__}, not one tensor"))
        blocks.append(_block(index, name, piece, module, x, y, work, model))
        x = y
    return blocks, x


def _block(
    index: int,
    name: str,
    piece: Layers,
    module: nn.Sequential,
    x: Tensor,
    y: Tensor,
    work: _Work,
    model: nn.Module,
) -> FunctionalBlock:
    takes, gives = tuple(x.shape[1:]), tuple(y.shape[1:])
    for shape in (takes, gives):
        if len(shape) not in (1, 3):
            raise CutError(
                f"{type(model).__name__} cannot be cut into functional blocks: '{name}' takes {list(takes)} and gives "
                f"{list(gives)}; blocks work on maps (channels, height, width) or vectors"
            )
    front = [layer for _, layer in piece[: [n for n, _ in piece].index(name)]]
    on_vectors = len(takes) == 1 or any(isinstance(layer, nn.Flatten) for layer in front)
    parameters = sum(p.numel() for p in module.parameters())
    return FunctionalBlock(
        index, name, "fc" if on_vectors else "conv", module, takes, gives, parameters, *work
    )


class _Work(NamedTuple):
    """What a block does for one sample."""

    macs: int
    activations: int


def _counted(module: nn.Module, x: Tensor) -> tuple[Tensor, _Work]:
    """Run a module; return what it gives and its work for one sample."""
    work = _Work(0, 0)

    def count(layer: nn.Module, _: object, y: Tensor) -> None:
        nonlocal work
        values = y[0].numel()
        # Each value of the output needs one multiplication for every weight of its output channel.
        macs = values * (getattr(layer, "weight")[0].numel())  # noqa: B009
        work = _Work(work.macs + macs, work.activations + values)

    hooks = [m.register_forward_hook(count) for m in module.modules() if isinstance(m, nn.Conv2d | nn.Linear)]
    try:
        return module(x), work
    finally:
        for hook in hooks:
            hook.remove()


def _check_equal(model: nn.Module, x: Tensor, y: Tensor) -> None:
    if not torch.equal(model(x).nan_to_num(), y.nan_to_num()):
        raise CutError(_order(model, "its parts one after the other give something else"))


def _order(model: nn.Module, why: str) -> str:
    return (
        f"{type(model).__name__} cannot be cut into functional blocks: {why}; write it as a nn.Sequential whose layers "
        "run in order (nn.Flatten and activations too), or name such modules in its attribute 'parts'"
    )
