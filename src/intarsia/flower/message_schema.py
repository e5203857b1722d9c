"""What server and site may say to each other: one typed schema, with ranges, for every question and answer.

Whatever comes from the other side is read through these; what does not fit is a `WireError` that names the place.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from intarsia.blocks import ME
from intarsia.blocks.plain import TEXT, Count, Hash, Message, Text, read_as, shown
from intarsia.clients import AT_SITE
from intarsia.core import WireError
from intarsia.data import Client, ClientInfo, Population
from intarsia.data.population import Goal

WHO, EXCHANGE, HERE, NEEDS, DONE, PROBLEM = "who", "exchange", "here", "needs", "done", "problem"
INPUTS = 2**22
"""The most numbers that one input of a model may have: an image of 1,182 x 1,182 pixels in three colours."""
OUTPUTS = 2**16
SAMPLES = 2**40
"""No client has more samples of a split, whatever the operator allows."""


def _line(text: str) -> str:
    if not text.isprintable():
        raise ValueError("a name has no control characters")
    return text


def _group(text: str) -> str:
    """Return a word that can be the name of a group: the second half of an address."""
    if "@" in text or text == ME:
        raise ValueError(f"a group is named without '@', and not '{ME}'")
    return _line(text)


def _shape(shape: list[int]) -> list[int]:
    if math.prod(shape) > INPUTS:
        raise ValueError(f"an input has at most {INPUTS} numbers")
    return shape


def _splits(samples: dict[str, int]) -> dict[str, int]:
    if not all(samples.get(split) for split in ("train", "test")):
        raise ValueError("a client has training and test samples")
    return samples


Line = Annotated[str, Field(min_length=1, max_length=200), AfterValidator(_line)]
Word = Annotated[str, Field(max_length=200), AfterValidator(_group)]
Group = Annotated[str, Field(min_length=1, max_length=200), AfterValidator(_group)]
Size = Annotated[int, Field(ge=1, le=INPUTS)]
Samples = Annotated[int, Field(ge=0, le=SAMPLES)]


class Who(Message):
    """The question who is there."""

    kind: Literal["who"]


class Told(Message):
    """What a site tells of a client: names, shapes and counts, never data."""

    name: Line
    shape: Annotated[list[Size], Field(max_length=8), AfterValidator(_shape)]
    samples: Annotated[dict[Literal["train", "validation", "test"], Samples], AfterValidator(_splits)]
    device: Group = "default"
    cohort: Group = "default"
    capacity: Annotated[float, Field(ge=0, le=1e12, allow_inf_nan=False)] = 1.0
    model: Word = ""
    task: Word = ""
    place: Annotated[int, Field(ge=0, le=2**31)] = 0

    @property
    def info(self) -> ClientInfo:
        """What the server knows of the client."""
        fields = {name: value for name, value in self if name not in ("shape", "place")}
        return ClientInfo(shape=tuple(self.shape), **fields)


class Aim(Message):
    """What clients of one task predict."""

    outputs: Annotated[int, Field(ge=1, le=OUTPUTS)]
    problem: Literal["classification", "regression"]
    labels: Annotated[str, Field(max_length=64)]


class Here(Message):
    """The answer who is there."""

    kind: Literal["here"]
    site: Line
    version: Annotated[str, Field(max_length=100)]
    clients: Annotated[list[Told], Field(min_length=1)]
    goals: dict[Word, Aim]
    plugins: dict[Line, list[Line]] = Field(default_factory=dict)
    """What is installed there beside Intarsia, by registry: names alone."""


class Description(Message):
    """What a site must know to build the same models and method."""

    settings: Annotated[str, Field(max_length=1 << 24)]
    kinds: list[Told]
    """One nameless client of every model of the federation."""
    goals: Annotated[dict[str, Aim], Field(min_length=1)]
    public: list[Text]
    initial: dict[str, dict[str, Hash]]


class Work(Message):
    """One client's task, what it counts, and the states of it that may be asked for again."""

    task: dict[str, Any]
    samples: Count
    keep: list[Hash]


class Order(Message):
    """The tasks of one exchange for the clients of a site."""

    kind: Literal["exchange"]
    run: Annotated[str, Field(pattern="^[0-9a-zA-Z]{1,64}$")]
    round: Annotated[int, Field(ge=0, le=2**31)]
    exchange: Text
    purpose: Text
    setup_id: Text
    jobs: list[Work]
    merge: bool
    present: dict[str, Hash]
    planned: dict[str, Count]
    setup: Description | None = None
    changes: dict[Hash, Hash] = Field(default_factory=dict)


class Needs(Message):
    """What a site lacks before it can do its tasks."""

    kind: Literal["needs"]
    site: Line
    setup: bool
    blocks: list[Hash]
    initial: list[Hash]


class Problem(Message):
    """What went wrong at a site."""

    kind: Literal["problem"]
    site: Text
    message: Text
    details: Text = ""


class Fault(Message):
    """What went wrong with one client's task."""

    kind: Literal["failed", "refused"]
    client: Text
    stage: Text
    block: Text
    message: Text
    details: Text = ""


class Answered(Message):
    """One client's answer: a failure, or the header of its update."""

    client: Line
    failure: Fault | None
    update: dict[str, Any] | None
    state: dict[Annotated[str, Field(pattern=f"^{AT_SITE}$")], Hash]
    seconds: Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False)]


class Summed(Message):
    """The plain half of an address's sums."""

    samples: Count
    scalars: list[Annotated[float, Field(allow_inf_nan=False)]]


class Done(Message):
    """The answers of all clients that a site was asked for."""

    kind: Literal["done"]
    site: Line
    replies: list[Answered]
    sums: dict[str, Summed]


KINDS: dict[str, type[Message]] = {
    HERE: Here,
    NEEDS: Needs,
    DONE: Done,
    PROBLEM: Problem,
    WHO: Who,
    EXCHANGE: Order,
}


def read(header: Mapping[str, Any], allowed: Sequence[str]) -> Message:
    """Read a header as one of these kinds of message."""
    kind = header.get("kind")
    if not isinstance(kind, str) or kind not in allowed:
        raise WireError(f"a message of kind {shown(kind)} came, expected was {' or '.join(allowed)}")
    return read_as(KINDS[kind], header, f"a message '{kind}'")


def shortened(text: str) -> str:
    """Return the end of a text that may be too long to travel."""
    return text[-TEXT:]


def info_to_json(info: ClientInfo) -> dict[str, Any]:
    """Return what is known of a client as plain values."""
    told = {key: value for key, value in dataclasses.asdict(info).items() if key != "profile"}
    return {**told, "shape": list(info.shape), "samples": dict(info.samples)}


def goals_to_json(goals: Mapping[str, Goal]) -> dict[str, Any]:
    """Return what each task predicts as plain values; of the labels only a hash, to compare sites by."""
    return {
        task: {"outputs": g.outputs, "problem": g.problem, "labels": _digest(g.labels)}
        for task, g in goals.items()
    }


def population_of(clients: Mapping[str, Client], goals: Mapping[str, Aim]) -> Population:
    """Make a population of clients and of what each task predicts."""
    made = {task: Goal(aim.outputs, aim.problem) for task, aim in goals.items()}
    first = next(iter(made.values()))
    return Population(clients, first.outputs, first.problem, tasks=made if len(made) > 1 else {})


def _digest(labels: Sequence[str]) -> str:
    return hashlib.sha256(json.dumps(list(labels)).encode()).hexdigest()[:16]
