"""What hostile clients make of their updates: each attack is a function of what they know."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from intarsia.blocks import Block
from intarsia.blocks.expected import MODERATE
from intarsia.trust.stack import Stack

Changes = dict[str, Tensor]
"""A change of every parameter, flat."""


@dataclass(frozen=True)
class Known:
    """All that an attacker knows of one address: what was sent, what it trained, what the honest holders will say."""

    sent: Block
    own: Block
    honest: Stack
    hostile: int
    """How many holders are hostile."""

    @property
    def trained(self) -> Changes:
        """What the attacker's own training changed."""
        stack = Stack(self.sent, [self.own])
        return {name: stack.rows(name)[0] for name in stack.names}

    @property
    def holders(self) -> int:
        """How many holders there are in all."""
        return self.hostile + len(self.honest.updates)

    def mean(self) -> Changes:
        """Return the mean change of the honest holders."""
        return {name: self.honest.rows(name).mean(0) for name in self.honest.names}

    def spread(self) -> Changes:
        """Return the standard deviation of the honest holders' changes, coordinate by coordinate."""
        return {name: self.honest.rows(name).std(0, correction=0) for name in self.honest.names}


@dataclass(frozen=True)
class Attack:
    """An attack: what becomes of blocks, of labels, of what is told beside them; who the attackers are."""

    name: str
    about: str
    blocks: Callable[[Known], Changes] | None = None
    flips_labels: bool = False
    answers: bool = False
    """Whether values and named tensors (gates, scores, class means) are poisoned."""
    one_cohort: bool = False
    """Whether all attackers are of one cohort, as far as it has enough clients."""


def times(factor: float) -> Callable[[Known], Changes]:
    """Return an attack that takes the own change so many times."""
    return lambda known: {name: factor * change for name, change in known.trained.items()}


def inner_product(known: Known) -> Changes:
    """Inner product manipulation (Xie et al. 2020): against the mean of the honest, three times as far."""
    return {name: -3.0 * mean for name, mean in known.mean().items()}


def little_is_enough(known: Known) -> Changes:
    """A little is enough (Baruch et al. 2019): the honest mean, 1.5 standard deviations off."""
    spread = known.spread()
    return {name: mean - 1.5 * spread[name] for name, mean in known.mean().items()}


def mimic(known: Known) -> Changes:
    """Mimic (Karimireddy et al. 2022): all attackers repeat the honest client that is furthest from the mean."""
    odd = int(known.honest.distances_from(known.mean()).argmax())
    return {name: known.honest.rows(name)[odd] for name in known.honest.names}


def min_max(known: Known) -> Changes:
    """Min-max (Shejwalkar and Houmansadr 2021): as far from the mean, against the spread, as honest pairs are apart."""
    mean, spread = known.mean(), known.spread()
    furthest = float(known.honest.distances().max())

    def at(gamma: float) -> Changes:
        return {name: own - gamma * spread[name] for name, own in mean.items()}

    low, high = 0.0, 50.0
    for _ in range(30):
        gamma = (low + high) / 2
        fits = float(known.honest.distances_from(at(gamma)).max()) <= furthest
        low, high = (gamma, high) if fits else (low, gamma)
    return at(low)


def replacement(known: Known) -> Changes:
    """Model replacement (Bagdasaryan et al. 2020): what was trained, boosted so that the mean becomes it."""
    return times(known.holders / known.hostile)(known)


def free_ride(known: Known) -> Changes:
    """Free riders: what was sent comes back."""
    return times(0.0)(known)


ATTACKS: Mapping[str, Attack] = {
    attack.name: attack
    for attack in (
        Attack("flip", "their change, the other way", times(-1.0)),
        Attack("flip-x5", "their change, the other way and five times as far", times(-5.0)),
        Attack("scale-x1000", "their change, a thousand times as far", times(1000.0)),
        Attack("ipm", "against the mean of the honest, three times as far", inner_product),
        Attack("alie", "the honest mean, 1.5 standard deviations off", little_is_enough),
        Attack("mimic", "all repeat the odd one out of the honest", mimic),
        Attack("minmax", "as far from the mean as honest pairs are apart", min_max),
        Attack("labels", "trained with labels turned round", flips_labels=True),
        Attack("replacement", "trained with labels turned round, boosted", replacement, flips_labels=True),
        Attack("free-rider", "what was sent comes back", free_ride),
        Attack("cohort", "as flip-x5, all attackers in one cohort", times(-5.0), one_cohort=True),
        Attack("answers", "gates, scores and class means, the other way and five times", answers=True),
    )
}


def poisoned(values: Mapping[str, object]) -> dict[str, object]:
    """Return values whose lists of numbers, such as FedMN's scores of links, are turned round and made large."""
    return {name: _turned(own) for name, own in values.items()}


def poisoned_tensors(tensors: Mapping[str, Block]) -> dict[str, Block]:
    """Return named tensors whose numbers, scores or class means, are turned round and made large."""
    return {
        name: block.alike(
            {
                n: (-5 * t).clamp(-MODERATE, MODERATE) if t.is_floating_point() else t
                for n, t in block.tensors.items()
            }
        )
        for name, block in tensors.items()
    }


def _turned(value: object) -> object:
    if not isinstance(value, list) or not all(isinstance(number, float) for number in value):
        return value
    return [max(-MODERATE, min(MODERATE, -5.0 * number)) for number in value]


def moved(block: Block, sent: Block, changes: Changes) -> Block:
    """Return a block with these changes against what was sent; all that is no parameter stays."""
    tensors = {
        name: sent.tensors[name].double().add(changes[name].view(tensor.shape)).to(tensor.dtype)
        if name in changes
        else tensor
        for name, tensor in block.tensors.items()
    }
    return block.alike(
        {name: torch.nan_to_num(t) if t.is_floating_point() else t for name, t in tensors.items()}
    )
