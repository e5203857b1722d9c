"""Stitch tuning: a server tunes the stitches of candidates on public data and chooses among them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional

from intarsia.core import Each, chance, one_by_one, part
from intarsia.methods.pfedclub.assembly import Assembled, Assembly, own_model
from intarsia.methods.pfedclub.decompose import Chains, Ref, block_of
from intarsia.methods.pfedclub.views import PublicData, nt_xent
from intarsia.training.optimisers import OPTIMISERS
from intarsia.training.settings import Training

BATCH = 128
"""Samples that go through frozen layers at once."""
MEMORY = 2**30
"""Bytes of activations that a process keeps."""

Views = tuple[Tensor, ...]


@part
class StitchTuning:
    """How stitches are tuned (the paper's settings; the batch size and the limit on samples are ours)."""

    epochs: Annotated[int, Field(ge=0)] = 3
    """How many epochs stitches are tuned on public data (0: not at all)."""
    lr: Annotated[float, Field(gt=0)] = 1e-3
    """The learning rate of the stitches."""
    batch_size: Annotated[int, Field(ge=1)] = 64
    """How many public samples a step sees."""
    temperature: Annotated[float, Field(gt=0)] = 0.07
    """Of NT-Xent, where public data has no labels."""
    samples: Annotated[int, Field(ge=0)] = 512
    """Public samples that a round uses at most, drawn anew for each (0: all, as the paper's server does)."""


@dataclass
class Prefixes:
    """What frozen blocks give for the public data: computed once for all candidates that begin with them."""

    chains: Chains
    public: PublicData
    memory: int = MEMORY
    _kept: OrderedDict[tuple[Ref, ...], Views] = field(default_factory=OrderedDict)

    def __call__(self, blocks: tuple[Ref, ...]) -> Views:
        """Return what these blocks, one after the other, give for every view.

        Activations that were not used for longest are forgotten if memory runs short.
        """
        if not blocks:
            return self.public.views
        if blocks not in self._kept:
            module = block_of(self.chains, blocks[-1]).module
            self._kept[blocks] = tuple(_through([module], view) for view in self(blocks[:-1]))
        views = self._kept[blocks]
        self._kept.move_to_end(blocks)
        while sum(view.nbytes for kept in self._kept.values() for view in kept) > self.memory:
            self._kept.popitem(last=False)
        return views


@dataclass(frozen=True)
class Tuned:
    """A candidate whose stitches are tuned, and its logits for the public samples; no layers, so it can travel."""

    assembly: Assembly
    stitches: Mapping[str, Tensor] = field(repr=False)
    """The tuned tensors, by their names among the stitches."""
    logits: Tensor = field(repr=False)
    scores: Mapping[Assembly, float] = field(default_factory=dict)
    """Of one that was chosen as a teacher: how well each that was tuned agrees with the client's model."""

    def model(self, chains: Chains) -> Assembled:
        """Return the network; its blocks are the models' own layers, not copies."""
        model = self.assembly.build(chains, 0)
        model.stitches.load_state_dict(dict(self.stitches))
        return model.eval()


def tune(assembly: Assembly, prefixes: Prefixes, settings: StitchTuning, seed: int) -> Tuned:
    """Tune a candidate's stitches, blocks frozen (Wang et al. 2024, eq. 2 with labels, eq. 3 without).

    What stands before the first trained layer runs once and not in every step.
    """
    model, views = assembly.build(prefixes.chains, seed), prefixes(assembly.blocks[: assembly.frozen])
    layers = model.layers(assembly.frozen)
    front = list(takewhile(lambda layer: not _weights([layer]), layers))  # a stitch's pooling
    layers, views = layers[len(front) :], tuple(_through(front, view) for view in views) if front else views
    if weights := _weights(layers):
        optimiser = OPTIMISERS["adam"](weights, Training(), settings.lr)
        for loss in _losses(layers, views, prefixes.public.y, settings, seed):
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
    return Tuned(assembly, model.stitches.state_dict(), _through(layers, views[0]))


def _losses(
    layers: Sequence[nn.Module], views: Views, y: Tensor | None, settings: StitchTuning, seed: int
) -> Iterator[Tensor]:
    """Yield the loss of every batch; their order depends on the seed alone."""
    draw = chance.generator(seed, "stitch batches")
    for epoch in range(settings.epochs):
        for rows in torch.split(torch.randperm(len(views[0]), generator=draw), settings.batch_size):
            if y is not None:
                yield functional.cross_entropy(_run(layers, views[0][rows]), y[rows])
            else:
                other = views[1 + epoch % (len(views) - 1)]
                both = _run(layers, torch.cat([views[0][rows], other[rows]]))
                yield nt_xent(both[: len(rows)], both[len(rows) :], settings.temperature)


def agreement(one: Tensor, other: Tensor) -> float:
    """Return the mean cosine between two models' logits, sample by sample (Wang et al. 2024, eq. 4)."""
    return float(functional.cosine_similarity(one.double(), other.double(), dim=1).mean())


def choose(
    candidates: Mapping[str, Sequence[Assembly]],
    prefixes: Prefixes,
    settings: StitchTuning,
    seed: int,
    each: Each = one_by_one,
) -> dict[str, Tuned]:
    """Tune candidates; choose for each model the one whose logits are closest to its own; of equal ones the first.

    Where its own model is among its candidates, nothing can be closer, and the others are not tuned for it.
    """
    own = {model: own_model(model, prefixes.chains) for model in candidates}
    tried = {
        model: [one for one in several if one.blocks == own[model].blocks] or several
        for model, several in candidates.items()
    }
    different = dict.fromkeys([*own.values(), *(one for several in tried.values() for one in several)])
    longest_first = sorted(different, key=lambda one: one.cost.macs, reverse=True)
    made = each(lambda one: tune(one, prefixes, settings, seed), longest_first)
    tuned = dict(zip(longest_first, made, strict=True))
    teachers = {}
    for model, several in tried.items():
        scores = {one: agreement(tuned[own[model]].logits, tuned[one].logits) for one in several}
        teachers[model] = replace(tuned[max(scores, key=scores.__getitem__)], scores=scores)
    return teachers


def _weights(layers: Sequence[nn.Module]) -> list[nn.Parameter]:
    return [weight for layer in layers for weight in layer.parameters() if weight.requires_grad]


def _run(layers: Sequence[nn.Module], x: Tensor) -> Tensor:
    """Run layers one after the other; what one gave is not changed by the next, as gradients may need it."""
    for layer in layers:
        in_place = any(getattr(module, "inplace", False) for module in layer.modules())
        x = layer(x.clone() if in_place else x)
    return x


@torch.no_grad()
def _through(layers: Sequence[nn.Module], x: Tensor) -> Tensor:
    """Return what layers give for all samples, batch by batch; from copies, as they may change what they get."""
    return torch.cat([_run(layers, batch.clone()) for batch in torch.split(x, BATCH)])
