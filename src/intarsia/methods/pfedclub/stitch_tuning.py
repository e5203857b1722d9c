"""Tailoring: a server tunes the stitches of candidates on public data and chooses among them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional

from intarsia.core import Each, SettingsError, chance, one_by_one, part
from intarsia.methods.pfedclub.assembly import Assembled, Assembly, own_model
from intarsia.methods.pfedclub.decompose import Chains, Ref, block_of, in_eval
from intarsia.methods.pfedclub.views import PublicData, nt_xent
from intarsia.training.optimisers import OPTIMISERS
from intarsia.training.settings import Training

BATCH = 128
"""Samples that go through frozen layers at once."""
MEMORY = 2**30
"""Bytes of activations that a process keeps."""

Views = tuple[Tensor, ...]


@part
class Tailoring:
    """How stitches are tuned (the paper's settings; the batch size and the limit on samples are ours)."""

    epochs: Annotated[int, Field(ge=0)] = 3
    lr: Annotated[float, Field(gt=0)] = 1e-3
    batch_size: Annotated[int, Field(ge=1)] = 64
    temperature: Annotated[float, Field(gt=0)] = 0.07
    """Of NT-Xent, where public data has no labels."""
    samples: Annotated[int, Field(ge=0)] = 512
    """Public samples that a round uses at most, drawn anew for each (0: all, as the paper's server does)."""


class Prefixes:
    """What frozen blocks give for the public data: computed once for all candidates that begin with them."""

    def __init__(self, chains: Chains, public: PublicData, memory: int = MEMORY) -> None:
        self.chains, self.public, self.memory = chains, public, memory
        self.computed = 0
        """How many blocks were run."""
        self._kept: OrderedDict[tuple[Ref, ...], Views] = OrderedDict()

    def __call__(self, blocks: Sequence[Ref]) -> Views:
        """Return what these blocks, one after the other, give for every view."""
        key = tuple(blocks)
        if not key:
            return self.public.views
        if key in self._kept:
            self._kept.move_to_end(key)
            return self._kept[key]
        before = self(key[:-1])
        module = block_of(self.chains, key[-1]).module
        with in_eval(module):
            views = tuple(_through([module], view) for view in before)
        self.computed += 1
        self._keep(key, views)
        return views

    def _keep(self, key: tuple[Ref, ...], views: Views) -> None:
        """Keep activations, and forget those that were not used for longest if memory runs short."""
        self._kept[key] = views
        while sum(map(_bytes, self._kept.values())) > self.memory:
            self._kept.popitem(last=False)


@dataclass(frozen=True)
class Tailored:
    """A candidate whose stitches are tuned, and its logits for the public samples; no layers, so it can travel."""

    assembly: Assembly
    stitches: Mapping[str, Tensor] = field(repr=False)
    """The tuned tensors, by their names among the stitches."""
    logits: Tensor = field(repr=False)

    def model(self, chains: Chains) -> Assembled:
        """Return the network; its blocks are the models' own layers, not copies."""
        model = self.assembly.build(chains, 0, copies=False)
        model.stitches.load_state_dict(dict(self.stitches))
        return model.eval()


def tailor(
    assembly: Assembly,
    chains: Chains,
    public: PublicData,
    settings: Tailoring,
    seed: int,
    prefixes: Prefixes | None = None,
) -> Tailored:
    """Tune a candidate's stitches, blocks frozen (Wang et al. 2024, eq. 2 with labels, eq. 3 without).

    With `prefixes`, what stands before the first trained layer runs once and not in every step; without, every
    step runs the whole model. Both give the same.
    """
    model = assembly.build(chains, seed, copies=False)
    layers, views = _layers(model, 0), public.views
    if prefixes is not None:
        frozen = assembly.frozen
        layers, views = _past_front(_layers(model, frozen), prefixes(assembly.blocks[:frozen]))
    fit(layers, views, public.y, settings, seed)
    model.eval()
    return Tailored(assembly, model.stitches.state_dict(), _through(layers, views[0]))


def fit(layers: Sequence[nn.Module], views: Views, y: Tensor | None, settings: Tailoring, seed: int) -> None:
    """Train those weights of a row of layers that want it, in place, on views of public samples."""
    weights = [p for layer in layers for p in layer.parameters() if p.requires_grad]
    if not weights:
        return
    optimiser = OPTIMISERS["adam"](weights, Training(), settings.lr)
    for epoch, rows in _batches(len(views[0]), settings, seed):
        if y is not None:
            loss = functional.cross_entropy(_run(layers, views[0][rows]), y[rows])
        else:
            other = views[1 + epoch % (len(views) - 1)]
            both = _run(layers, torch.cat([views[0][rows], other[rows]]))
            loss = nt_xent(both[: len(rows)], both[len(rows) :], settings.temperature)
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()


def agreement(one: Tensor, other: Tensor) -> float:
    """Return the mean cosine between two models' logits, sample by sample (Wang et al. 2024, eq. 4)."""
    if one.shape != other.shape:
        raise SettingsError(f"logits of shapes {list(one.shape)} and {list(other.shape)} cannot be compared")
    return float(functional.cosine_similarity(one.double(), other.double(), dim=1).mean())


@dataclass(frozen=True)
class Choice:
    """The candidate that a client gets as its teacher, and how well those that were tuned agree with its model."""

    chosen: Tailored
    scores: Mapping[Assembly, float]


def choose(
    candidates: Mapping[str, Sequence[Assembly]],
    prefixes: Prefixes,
    settings: Tailoring,
    seed: int,
    each: Each = one_by_one,
) -> dict[str, Choice]:
    """Tune candidates; choose for each model the one whose logits are closest to its own; of equal ones the first.

    Where its own model is among its candidates, nothing can be closer, and the others are not tuned for it.
    """
    chains, public = prefixes.chains, prefixes.public
    own = {model: own_model(model, chains) for model in candidates}
    tried = {model: _worth_tuning(model, several, chains) for model, several in candidates.items()}
    all_of_them = dict.fromkeys([*own.values(), *(c for several in tried.values() for c in several)])
    different = sorted(all_of_them, key=lambda one: one.cost.macs, reverse=True)  # the longest first
    made = each(lambda one: tailor(one, chains, public, settings, seed, prefixes), different)
    by_assembly = dict(zip(different, made, strict=True))
    return {
        model: _closest(by_assembly[own[model]].logits, [by_assembly[one] for one in several])
        for model, several in tried.items()
    }


def _worth_tuning(model: str, candidates: Sequence[Assembly], chains: Chains) -> Sequence[Assembly]:
    if not candidates:
        raise SettingsError(f"there is no candidate for '{model}': its own model always is one")
    return [c for c in candidates if c.is_own(model, chains)] or candidates


def _closest(own: Tensor, made: Sequence[Tailored]) -> Choice:
    scores = {one.assembly: agreement(own, one.logits) for one in made}
    return Choice(max(made, key=lambda one: scores[one.assembly]), scores)


def size_change(teachers: Sequence[int], own: int) -> float:
    """Return phi: by what share a client's teachers are larger than its model, over rounds (eq. 6)."""
    if not teachers or own <= 0:
        raise SettingsError("phi needs the size of at least one teacher, and of a model that has parameters")
    return sum((size - own) / own for size in teachers) / len(teachers)


def _layers(model: Assembled, start: int) -> list[nn.Module]:
    """Return what stands from this block on: blocks whole, stitches layer by layer."""
    blocks = set(model.blocks)
    return [layer for step in model.steps(start) for layer in ([step] if step in blocks else step.children())]


def _past_front(layers: list[nn.Module], views: Views) -> tuple[list[nn.Module], Views]:
    """Run the layers before the first trained one (a stitch's pooling); return the others, and what they get."""
    front = list(takewhile(lambda layer: not _trained(layer), layers))
    return layers[len(front) :], tuple(_through(front, view) for view in views) if front else views


def _trained(layer: nn.Module) -> bool:
    return any(p.requires_grad for p in layer.parameters())


def _run(layers: Sequence[nn.Module], x: Tensor) -> Tensor:
    """Run layers one after the other; what one gave is not changed by the next, as gradients may need it."""
    for layer in layers:
        x = layer(x.clone() if _works_in_place(layer) else x)
    return x


def _works_in_place(layer: nn.Module) -> bool:
    return any(getattr(module, "inplace", False) for module in layer.modules())


@torch.no_grad()
def _through(layers: Sequence[nn.Module], x: Tensor) -> Tensor:
    """Return what layers give for all samples, batch by batch; from copies, as they may change what they get."""
    return torch.cat([_run(layers, x[start : start + BATCH].clone()) for start in range(0, len(x), BATCH)])


def _batches(count: int, settings: Tailoring, seed: int) -> Iterator[tuple[int, Tensor]]:
    """Yield the epoch and the rows of every batch; the order depends on the seed alone."""
    draw = chance.generator(seed, "stitch batches")
    for epoch in range(settings.epochs):
        order = torch.randperm(count, generator=draw)
        for start in range(0, count, settings.batch_size):
            yield epoch, order[start : start + settings.batch_size]


def _bytes(views: Views) -> int:
    return sum(view.numel() * view.element_size() for view in views)
