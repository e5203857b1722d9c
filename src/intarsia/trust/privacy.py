"""Client-level privacy: what the settings say, and the bound that every client's update is held to."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, Literal

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer

from intarsia.blocks import Address, Block, Fold, Layout, Update, check_block
from intarsia.core import Refused, part
from intarsia.trust.clipping import Blocks, change_norm, clipped

BOUND = "#bound"
"""The value of a task that says how far the answer may go."""
WITHIN = "#within"
"""The value of an accepted update that says whether it had kept to its bound by itself (1 or 0)."""
TRIES = 8
"""How often an update is scaled back until its rounded numbers keep to the bound as well."""

NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]


@part
class Privacy:
    """Differential privacy, of whole clients or of single samples; off while `clip` is 0."""

    level: Literal["client", "example"] = "client"
    """What is protected: `client`: all that a client has, in the blocks that are merged; or each `example` of a
    client's training data, in all that the client sends (DP-SGD; `clip` and `noise` are then those of every step)."""
    clip: NotNegative = 0.0
    """How far a client's update may go, over all of its blocks together (0: no privacy). With `adaptive`, what the
    bound starts from."""
    noise: NotNegative = 0.0
    """The noise on a sum of updates, in bounds: its standard deviation is `noise` times the bound (0: as `epsilon`
    says)."""
    epsilon: Annotated[float, Field(ge=0, le=100)] = 0.0
    """What the whole run may cost: the noise follows from it before the run (0: as `noise` says)."""
    delta: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """The delta that epsilon is told for (0: one over the number of clients to the power of 1.1)."""
    budget: NotNegative = 0.0
    """The epsilon that a run stops before (0: `epsilon`, or else none)."""
    adaptive: bool = False
    """Whether the bound follows the clients' updates (Andrew et al. 2021); what that costs comes out of the noise."""
    quantile: Annotated[float, Field(gt=0, lt=1)] = 0.5
    """The share of updates that an adaptive bound leaves as they are."""
    rate: Annotated[float, Field(gt=0)] = 0.2
    """How fast an adaptive bound follows."""
    randomness: Literal["auto", "keyed", "system"] = "auto"
    """Where noise and sampling come from: the seed, so that a simulation repeats (`keyed`), or the operating system
    (`system`: always so in a real federation). `auto`: what fits."""
    tells_scores: bool = False
    """Whether clients of a real federation may tell its server their scores: no noise covers these."""

    @model_serializer(mode="wrap")
    def _nothing_while_off(self, usual: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave everything out while there is no privacy."""
        return dict(usual(self)) if self != Privacy() else {}

    @property
    def on(self) -> bool:
        """Whether there is privacy."""
        return self.clip > 0

    @property
    def of_clients(self) -> bool:
        """Whether whole clients are protected."""
        return self.on and self.level == "client"

    @property
    def of_examples(self) -> bool:
        """Whether single samples are protected."""
        return self.on and self.level == "example"

    @property
    def most(self) -> float:
        """The epsilon that a run stops before (0: none)."""
        return self.budget or self.epsilon

    def bits_noise(self, expected: float) -> float:
        """Return the noise on the count of updates within an adaptive bound, of so many expected clients.

        A twentieth of the clients, as the paper has it (section 3.1); of few clients the noise itself, so that the
        count never takes more than a quarter of what privacy allows.
        """
        return max(expected / 20, self.noise)

    def sum_noise(self, expected: float) -> float:
        """Return the noise that is left for the sums: both together cost what `noise` alone would (Theorem 1)."""
        if not self.adaptive:
            return self.noise
        return 1 / math.sqrt(self.noise**-2 - (2 * self.bits_noise(expected)) ** -2)


def held_to_bound(
    update: Update, fold: Fold, expected: Mapping[Address, Layout], values: Mapping[str, object]
) -> Update:
    """Return an update that goes no further than its task allows, rounding included."""
    bound = values.get(BOUND)
    if not isinstance(bound, float):
        raise Refused("its task names no bound, which privacy needs")
    if update.blocks.keys() != expected.keys():
        return update  # the fold refuses it
    for address, block in update.blocks.items():
        check_block(block, expected[address], address.block)
    blocks, norm = _within(update.blocks, fold.present, bound - _rounding(fold, update.blocks, bound))
    return replace(update, blocks=blocks, values={**update.values, WITHIN: int(norm <= bound)})


def _rounding(fold: Fold, blocks: Blocks, bound: float) -> float:
    """Return the most that a change of these blocks can grow by when it is rounded to whole steps of its grids."""
    squares = []
    for address in blocks:
        sums = fold.sums(address)
        steps = {name: grid.step * sums.planned for name, grid in sums.grids.items()}
        squares += [(steps[name] / 2) ** 2 * sums.tensors[name].numel() for name in steps]
    most = math.sqrt(math.fsum(squares))
    if most > bound / 2:
        raise Refused(
            f"privacy.clip: a bound of {bound:.3g} is lost in rounding ({most:.3g}): choose a larger one"
        )
    return most


def _within(blocks: Blocks, sent: Blocks, bound: float) -> tuple[dict[Address, Block], float]:
    """Return changes of a norm of at most `bound` as they are after rounding, and the norm that they came with."""
    target, came = bound, change_norm(blocks, sent)
    for again in range(TRIES):
        found, _ = clipped(blocks, sent, target)
        norm = change_norm(found, sent)
        if norm <= bound:
            return found, came
        target *= bound / norm * (1 - 1e-6 * 4**again)
    return {address: sent[address] for address in blocks}, came
