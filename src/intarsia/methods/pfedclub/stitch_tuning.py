"""Stitch tuning: a server tunes the stitches of candidates on public data and chooses among them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from types import MappingProxyType
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional

from intarsia.core import Each, chance, one_by_one, part
from intarsia.methods.distilling.common import divergence
from intarsia.methods.pfedclub.assembly import Assembled, Assembly, own_blocks, own_model
from intarsia.methods.pfedclub.decompose import Chains, Ref, block_of
from intarsia.methods.pfedclub.ridge import start
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
    start: Literal["random", "ridge"] = "random"
    """Weights before the first step: drawn by lot; or in closed form, by ridge regression from what a stitch takes
    towards what the next block takes in its own model, for a head towards the scores of the client's model."""
    ridge: Annotated[float, Field(gt=0)] = 0.01
    """How strongly that regression shrinks weights, as a share of the mean square of what it regresses on."""
    target: Literal["public", "own"] = "public"
    """What steps go towards: what is public (eq. 2 with labels, eq. 3 without), or the scores of the client's own
    model for the public samples, by KL(own || candidate), which needs no labels."""
    answers: Literal["all", "held"] = "all"
    """Which labels these steps are about: all, or those that the client holds, which it then tells the server. Samples
    of other labels and the scores for them do not count."""

    @property
    def personal(self) -> bool:
        """Whether a candidate's stitches depend on whom it is tuned for."""
        return self.start == "ridge" or self.target == "own" or self.answers == "held"


@dataclass(frozen=True)
class Aim:
    """Whom a candidate is tuned for, where the settings make a difference of it."""

    model: str = ""
    held: tuple[int, ...] = ()
    """The labels that its client holds, if steps are about these alone."""


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
            self._kept[blocks] = tuple(through([module], view) for view in self(blocks[:-1]))
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


def tune(
    assembly: Assembly,
    prefixes: Prefixes,
    settings: StitchTuning,
    seed: int,
    aim: Aim = Aim(),
) -> Tuned:
    """Tune a candidate's stitches, blocks frozen (Wang et al. 2024, eq. 2 with labels, eq. 3 without).

    What stands before the first trained layer runs once and not in every step.
    """
    model, views = assembly.build(prefixes.chains, seed), prefixes(assembly.blocks[: assembly.frozen])
    if settings.start == "ridge":
        logits = _start(model, assembly, prefixes, settings.ridge, aim)
        if not settings.epochs:
            return Tuned(assembly, model.stitches.state_dict(), logits)
    layers = model.layers(assembly.frozen)
    front = list(takewhile(lambda layer: not _weights([layer]), layers))  # a stitch's pooling
    layers, views = layers[len(front) :], tuple(through(front, view) for view in views) if front else views
    if weights := _weights(layers):
        optimiser = OPTIMISERS["adam"](weights, Training(), settings.lr)
        for loss in _losses(layers, views, _lesson(prefixes, settings, aim), settings, seed):
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
    return Tuned(assembly, model.stitches.state_dict(), through(layers, views[0]))


def _start(model: Assembled, assembly: Assembly, prefixes: Prefixes, strength: float, aim: Aim) -> Tensor:
    """Start all stitches in closed form, front to back: each takes what those before it, started, let through.

    Return the scores that come out.
    """
    x = prefixes(assembly.blocks[: assembly.frozen])[0]
    for place in range(assembly.frozen, len(assembly.stitches)):
        stitch = assembly.stitches[place]
        if stitch is not None:
            layers = model.stitches[str(place)]
            start(layers, stitch, x, _towards(assembly, place, prefixes, aim), strength)
            x = through([layers], x)
        x = through(list(model.blocks[place : place + 1]), x)
    return x


def _towards(assembly: Assembly, place: int, prefixes: Prefixes, aim: Aim) -> Tensor:
    """Return what the block at a place takes in its own model; behind the last, the scores of the client's model."""
    if place == len(assembly.blocks):
        return prefixes(own_blocks(aim.model, prefixes.chains))[0]
    ref = assembly.blocks[place]
    return prefixes(own_blocks(ref.model, prefixes.chains)[: ref.index])[0]


@dataclass(frozen=True)
class _Lesson:
    """What candidates are told of the public samples: which count, and labels or scores for them; or none of these."""

    rows: Tensor
    columns: Tensor | None = None
    """The labels that count (None: all)."""
    y: Tensor | None = None
    scores: Tensor | None = None

    def loss(self, outputs: Tensor, rows: Tensor) -> Tensor:
        """Return how far outputs for these samples are from what they should be."""
        own = self.of_columns(outputs)
        if self.scores is not None:
            return divergence(self.of_columns(self.scores[rows]), own)
        assert self.y is not None
        y = self.y[rows]
        return functional.cross_entropy(
            own, y if self.columns is None else torch.searchsorted(self.columns, y)
        )

    def of_columns(self, scores: Tensor) -> Tensor:
        """Return the scores that count."""
        return scores if self.columns is None else scores[:, self.columns]


def _lesson(prefixes: Prefixes, settings: StitchTuning, aim: Aim) -> _Lesson:
    views, y = prefixes.public
    rows, columns = torch.arange(len(views[0])), torch.tensor(sorted(aim.held)) if aim.held else None
    if settings.target == "own":
        return _Lesson(rows, columns, scores=prefixes(own_blocks(aim.model, prefixes.chains))[0])
    if columns is not None and y is not None:
        rows = rows[torch.isin(y, columns)]
    return _Lesson(rows, columns, y)


def _losses(
    layers: Sequence[nn.Module], views: Views, lesson: _Lesson, settings: StitchTuning, seed: int
) -> Iterator[Tensor]:
    """Yield the loss of every batch; their order depends on the seed alone."""
    draw = chance.generator(seed, "stitch batches")
    for epoch in range(settings.epochs if len(lesson.rows) else 0):
        order = lesson.rows[torch.randperm(len(lesson.rows), generator=draw)]
        for rows in torch.split(order, settings.batch_size):
            if lesson.y is None and lesson.scores is None:
                other = views[1 + epoch % (len(views) - 1)]
                both = _run(layers, torch.cat([views[0][rows], other[rows]]))
                yield nt_xent(both[: len(rows)], both[len(rows) :], settings.temperature)
            else:
                yield lesson.loss(_run(layers, views[0][rows]), rows)


def agreement(one: Tensor, other: Tensor) -> float:
    """Return the mean cosine between two models' logits, sample by sample (Wang et al. 2024, eq. 4)."""
    return float(functional.cosine_similarity(one.double(), other.double(), dim=1).mean())


def choose(
    candidates: Mapping[str, Sequence[Assembly]],
    prefixes: Prefixes,
    settings: StitchTuning,
    seed: int,
    each: Each = one_by_one,
    held: Mapping[str, tuple[int, ...]] = MappingProxyType({}),
) -> dict[str, Tuned]:
    """Tune candidates; choose for each model the one whose logits are closest to its own; of equal ones the first.

    Where its own model is among its candidates, nothing can be closer, and the others are not tuned for it. `held` has
    the labels of each model's client, where tuning is about these alone.
    """
    own = {model: own_model(model, prefixes.chains) for model in candidates}
    aims = {m: Aim(m, held.get(m, ())) if settings.personal else Aim() for m in candidates}
    tried = {
        model: [one for one in several if one.blocks == own[model].blocks] or several
        for model, several in candidates.items()
    }
    pairs = [(one, aims[model]) for model in candidates for one in (own[model], *tried[model])]
    longest_first = sorted(dict.fromkeys(pairs), key=lambda pair: pair[0].cost.macs, reverse=True)
    made = each(lambda pair: tune(pair[0], prefixes, settings, seed, pair[1]), longest_first)
    tuned = dict(zip(longest_first, made, strict=True))
    teachers = {}
    for model, several in tried.items():
        itself = tuned[own[model], aims[model]].logits
        scores = {one: agreement(itself, tuned[one, aims[model]].logits) for one in several}
        closest = max(scores, key=scores.__getitem__)
        teachers[model] = replace(tuned[closest, aims[model]], scores=scores)
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
def through(layers: Sequence[nn.Module], x: Tensor) -> Tensor:
    """Return what layers give for all samples, batch by batch; from copies, as they may change what they get."""
    return torch.cat([_run(layers, batch.clone()) for batch in torch.split(x, BATCH)])
