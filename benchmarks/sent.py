"""What every method sends beside blocks, read from its messages: `python -m benchmarks.sent` writes docs/trust/sent.md.

A small run of every method on scikit-learn's digits is played; all tasks and answers are read, and held against what
the method declares (`Method.expects`).
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from tests.conftest import NEEDS, SMALL

from intarsia.audit.played import played
from intarsia.audit.sent import DOWN, UP, Sent, sent_in
from intarsia.core import write_atomically
from intarsia.experiment import Experiment
from intarsia.experiment.settings import load
from intarsia.methods import EVALUATE, METHODS

PAGE = Path(__file__).parents[1] / "docs" / "trust" / "sent.md"
USUAL = ("correct", "loss", "n", "step_weight", "steps")
VARIANTS = {
    "modfl, cohorts found": ["method=modfl", "sharing.cohorts=found"],
    "pfedclub, stitches of held labels": [
        "method=pfedclub",
        *NEEDS["pfedclub"],
        "method.tailoring.answers=held",
    ],
}

HEAD = """\
# What is sent beside blocks

Blocks are what a method is about; a server learns more than them. This page is written by
`python -m benchmarks.sent`, which plays every method in little and reads all messages; a test fails where it is not
what the code does. [What that gives away](audit.md) is measured.

Every update names its client, the run, the round and the exchange, the hash of the state that the client is in
afterwards, and **how many samples it trains on**: its weight in a merge. Blocks marked `@me` are in no message of any
method (tested for all of them).
"""
EVALUATION = """\
## Evaluation

After every round in which own models are evaluated (`evaluation.every`), and with every method, clients answer
`scores`; after the last one also the entries `tally`, `usual` and `unseen` of it, and `facts`
([judging](../judging.md); `evaluation.metrics = []`: they do not).
**The tally gives the distribution of the labels in a client's test data away exactly.**
"""


@dataclass(frozen=True)
class Played:
    """What was heard of one method."""

    title: str
    single: bool
    sent: list[Sent]


def hear(changes: Iterable[str]) -> Played:
    """Play a method in little."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        experiment = Experiment.build(load(SMALL, [*changes, "rounds=2"]))
        with played(experiment) as play:
            method = experiment.setup.method
            return Played(method.title, method.sees_updates, sent_in(play.ear, experiment.setup))


def hear_all() -> dict[str, Played]:
    """Play every method, and variants that send something else."""
    usual = {name: hear([f"method={name}", *NEEDS.get(name, ())]) for name in METHODS}
    return usual | {name: hear(changes) for name, changes in VARIANTS.items()}


def page(heard: Mapping[str, Played]) -> str:
    """Return the page."""
    lines = [
        "| method | step | blocks that come back | beside them | to clients, beside blocks | the server needs |"
    ]
    lines += ["| --- | --- | --- | --- | --- | --- |"]
    for name, own in heard.items():
        lines += [_row(name, own, sent) for sent in own.sent if sent.step != EVALUATE]
    names = (
        "## What the names mean\n\n| to the server | what it is |\n| --- | --- |\n"
        + "\n".join(f"| `{name}` | {UP[name]} |" for name in UP)
        + "\n\n| to clients | what it is |\n| --- | --- |\n"
        + "\n".join(f"| `{name}` | {DOWN[name]} |" for name in DOWN)
    )
    told = f"*training* is `{'`, `'.join(USUAL)}`: how training went, the loss and the hits among it."
    return "\n".join([HEAD, "## Training", "", told, "", *lines, "", EVALUATION, names, ""])


def _row(name: str, own: Played, sent: Sent) -> str:
    blocks = ", ".join(sent.blocks_up) or "none"
    one = f"sums of one client's ({', '.join(sent.alone)})" if sent.alone else ""
    needs = "single updates" if own.single else one or ("sums" if sent.blocks_up else "every answer")
    return f"| {name} | {sent.step} | {blocks} | {_told(sent.up)} | {_told(sent.down)} | {needs} |"


def _told(names: tuple[str, ...]) -> str:
    usual = set(USUAL) <= set(names)
    rest = [f"`{name}`" for name in names if not (usual and name in USUAL)]
    return ", ".join((["*training*"] if usual else []) + rest) or "nothing"


def main() -> None:
    """Write the page."""
    torch.set_num_threads(1)
    write_atomically(PAGE, page(hear_all()).encode())
    print(PAGE)


if __name__ == "__main__":
    main()
