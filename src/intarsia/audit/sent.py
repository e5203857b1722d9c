"""What travels beside blocks: read from the messages themselves, and held against what the method declares."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

from intarsia.audit.played import Ear, Heard
from intarsia.blocks import Address
from intarsia.core import SettingsError
from intarsia.engines.answers import expected
from intarsia.methods import EVALUATE
from intarsia.setup import Setup

UP = {
    "n": "how many samples training went through",
    "correct": "how many of these were predicted rightly",
    "loss": "the mean loss while training",
    "steps": "how many steps the client took",
    "step_weight": "what these steps weigh (FedNova)",
    "scores": "hits and loss of the own model on test and validation data, and how many samples these are",
    "scores: tally": "after the last round: how often which label was taken for which, or how large errors were",
    "scores: usual": "likewise, of a model that always says what is usual in the training data",
    "scores: unseen": "how many test samples have a label that the training data lacks",
    "facts": "how many labels the training data has, and whether its columns are unscaled",
    "logits": "the router's score of every link: a summary of inputs and labels",
    "kept": "which links the client's network is to use, by its own choice",
    "held": 'which labels the client has (`method.tailoring.answers = "held"`)',
    "rows": "the labels that the client has (`method.held_rows = false`: not told)",
    "teacher_right": "the share of training samples that the teacher is right about",
    "teacher_right_among_held": "likewise, among the labels that the client has",
    "tensors scores": "the client's predictions for all public samples",
    "tensors means": "for every label that the client has, its number and its mean representation",
}
"""What names in answers mean; a test asks for every name that any method uses."""
DOWN = {
    "gates": "which links the client's network uses",
    "scores": "the client's links' scores, as they count for the draw",
    "noise": "the lots that were drawn for its links",
    "slope": "what its links' scores count in their gradient",
    "temperature": "how sharply links were drawn",
    "fallback": "whether its network had to be completed",
    "choose": "whether the client is to choose its blocks now",
    "ratios": "how wide the client's model is, layer by layer",
    "teacher": "how the teacher is made of blocks of other clients",
    "judge": "what is to be counted of predictions",
    "tensors teacher": "the teacher's weights: those of other clients",
    "tensors public": "the public samples",
    "tensors club": "the mean of what all clients' models, on the server, say of them",
    "tensors consensus": "the mean of all clients' predictions for them",
}
"""What names in tasks mean."""
NOTED = "#"
"""Begins the names of values that the server itself notes with an update that it took."""


@dataclasses.dataclass(frozen=True)
class Sent:
    """What one step of a method sends beside blocks of the client's model."""

    step: str
    up: tuple[str, ...]
    """Values and tensors (`tensors NAME`) of answers."""
    down: tuple[str, ...]
    blocks_up: tuple[str, ...]
    """Blocks of the model that come back."""
    alone: tuple[str, ...]
    """Those of them that a client shares with nobody: their sum is its update."""

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
        found.append(Sent(step, tuple(sorted(up)), tuple(sorted(down)), *_blocks(own)))
    return found


def _blocks(own: Iterable[Heard]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the blocks that came back, and those of addresses that one client alone returned."""
    holders: dict[Address, set[str]] = {}
    for heard in own:
        for address in heard.update.blocks:
            holders.setdefault(address, set()).add(heard.task.client)
    alone = {address.block for address, names in holders.items() if len(names) == 1}
    return tuple(sorted({address.block for address in holders})), tuple(sorted(alone))


def _up(heard: Heard) -> Iterable[str]:
    yield from (name for name in heard.update.values if not name.startswith(NOTED))
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
    told = {name for name in _up(heard) if not name.startswith("scores: ")}
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
