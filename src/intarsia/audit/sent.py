"""What travels beside blocks: read from the messages themselves, and held against what the method declares."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

from intarsia.audit.played import Ear, Heard
from intarsia.core import SettingsError
from intarsia.engines.answers import expected
from intarsia.methods import EVALUATE
from intarsia.setup import Setup

MEANINGS = {
    "n": "how many samples training went through",
    "correct": "how many of these were predicted rightly",
    "loss": "the mean loss while training",
    "steps": "how many steps the client took",
    "step_weight": "what these steps weigh (FedNova)",
    "scores": "the own model's hits and loss on test and validation data, and how many samples these are",
    "facts": "how many labels the training data has, and whether its columns are unscaled",
    "logits": "the router's score of every link: a summary of inputs and labels",
    "gates": "which links the client's network uses",
    "noise": "the lots that the server drew for the links",
    "slope": "what scores count in the links' gradient",
    "judge": "what is to be counted of predictions",
    "stages": "which stages of the own model are to be scored",
    "temperature": "how sharply links are drawn",
    "tensors scores": "predictions for the public data",
    "tensors means": "the mean representation of every label that the client has",
    "tensors public": "the public data",
    "tensors teacher": "another client's blocks",
}
"""What names in messages mean; a test asks for every name that any method uses."""
SAMPLES = "samples"
"""Every update says how many samples the client trains on."""


@dataclasses.dataclass(frozen=True)
class Sent:
    """What one step of a method sends beside blocks of the client's model."""

    step: str
    up: tuple[str, ...]
    """Values and tensors (`tensors NAME`) of answers."""
    down: tuple[str, ...]
    blocks_up: tuple[str, ...]
    """Blocks that come back, as `block@group` with the group's kind."""

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return {key: list(v) if isinstance(v, tuple) else v for key, v in vars(self).items()}


def sent_in(ear: Ear, setup: Setup) -> list[Sent]:
    """Return what every step sent, over all clients and rounds that were heard."""
    steps: dict[str, list[Heard]] = {}
    for heard in (*ear.first.values(), *ear.last.values()):
        steps.setdefault(heard.task.exchange, []).append(heard)
    found = []
    for step, own in steps.items():
        for heard in own:
            _check_declared(heard, setup)
        up = {name for heard in own for name in _up(heard)}
        down = {name for heard in own for name in _down(heard)}
        blocks = {a.block for heard in own for a in heard.update.blocks}
        found.append(Sent(step, tuple(sorted(up)), tuple(sorted(down)), tuple(sorted(blocks))))
    return found


def _up(heard: Heard) -> Iterable[str]:
    yield from heard.update.values
    yield from (f"tensors {name}" for name in heard.update.tensors)
    if heard.task.exchange == EVALUATE:
        for score in heard.update.values.get("scores", ()):
            yield from (f"scores: {name}" for name in score if name in ("tally", "usual", "unseen"))


def _down(heard: Heard) -> Iterable[str]:
    yield from heard.task.values
    fetched = set(heard.task.plan.fetched)
    yield from (f"tensors {a.block}" for a in heard.task.versions if a not in fetched)


def _check_declared(heard: Heard, setup: Setup) -> None:
    """Say so if an answer holds what its method does not declare."""
    declared = expected(setup, heard.task)
    known = {*declared.values, *declared.perhaps, *(f"tensors {name}" for name in declared.tensors)}
    told = {*heard.update.values, *(f"tensors {name}" for name in heard.update.tensors)}
    if told - known and not declared.others:
        raise SettingsError(
            f"step '{heard.task.exchange}' sends {min(told - known)}, which it does not declare"
        )


def private_in(ear: Ear) -> list[str]:
    """Return the addresses of clients' own blocks that were in a message: there must be none."""
    return sorted(
        {
            f"{heard.task.client}: {address}"
            for heard in (*ear.first.values(), *ear.last.values())
            for address in (*heard.task.blocks, *heard.update.blocks)
            if address.private
        }
    )


def meaning(name: str) -> str:
    """Return what a name in messages means."""
    known: Mapping[str, str] = MEANINGS
    return known.get(name, known.get(name.removeprefix("tensors "), ""))
