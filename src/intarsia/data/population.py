"""Populations: clients with attributes and data of their own."""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from intarsia.blocks import ME
from intarsia.core import DataError, part
from intarsia.data.places import Places

if TYPE_CHECKING:
    from intarsia.data.preparation import Prepared

Problem = Literal["classification", "regression"]
SPLITS = ("train", "validation", "test")
ATTRIBUTES = ("device", "cohort", "capacity", "model", "task")
PROFILE = ("speed", "seconds", "down", "up", "latency", "dropout", "shift", "available")
"""What can be known of what a client's device can do: numbers but for the last, hours of the day."""


@dataclass(frozen=True)
class Scaling:
    """How stored numbers become inputs, channel by channel: (x * factor - mean) / std."""

    factor: float
    mean: tuple[float, ...]
    std: tuple[float, ...]

    @property
    def inputs(self) -> Literal["unit", "standardised"]:
        """What the inputs are: `unit` (0 ... 1), or standardised by mean and deviation."""
        plain = set(self.mean) == {0.0} and set(self.std) == {1.0}
        return "unit" if plain else "standardised"

    def apply(self, rows: Tensor) -> Tensor:
        """Return inputs for rows whose last dimension is the channel."""
        mean = torch.tensor(self.mean, device=rows.device)
        std = torch.tensor(self.std, device=rows.device)
        return rows.float().mul_(self.factor).sub_(mean).div_(std)


@dataclass(frozen=True)
class Examples:
    """Inputs and targets, one row a sample; images are kept as bytes and scaled batch by batch."""

    x: Tensor
    y: Tensor
    scaling: Scaling | None = None
    noise: float = 0.0
    """The deviation of Gaussian noise that every batch in training gets anew, in units of images (0 ... 1)."""

    def __len__(self) -> int:
        return len(self.x)


@dataclass(frozen=True)
class ClientInfo:
    """What the server knows of a client: its name, attributes and counts, never its data."""

    name: str
    shape: tuple[int, ...]
    samples: Mapping[str, int]
    device: str = "default"
    cohort: str = "default"
    capacity: float = 1.0
    model: str = ""
    task: str = ""
    """What the client learns to predict, where not all learn the same."""
    profile: Mapping[str, float | str] = field(default_factory=dict)
    """What is known of what its device can do, by the names of the fleet's settings (`speed`, `up`, ...)."""

    @property
    def train_samples(self) -> int:
        """How many samples the client trains on: its weight in a merge."""
        return self.samples["train"]

    def attribute(self, name: str) -> str:
        """Return an attribute as the name of a group."""
        if name not in ATTRIBUTES:
            raise DataError(f"clients have no attribute '{name}'; they have: {', '.join(ATTRIBUTES)}")
        group = str(getattr(self, name))
        if group == ME:
            raise DataError(
                f"client '{self.name}' has {name} '{ME}', the word for what never leaves: rename it"
            )
        return group


@dataclass(frozen=True)
class Client:
    """A client: what is known of it, and its data by split."""

    info: ClientInfo
    data: Mapping[str, Examples]


@dataclass(frozen=True)
class Goal:
    """What the clients of one task learn to predict."""

    outputs: int
    problem: Problem = "classification"
    labels: Sequence[str] = ()

    @property
    def columns(self) -> list[str]:
        """The names of what is counted: labels, or just samples."""
        return (
            ["samples"]
            if self.problem == "regression"
            else list(self.labels or map(str, range(self.outputs)))
        )

    def histogram(self, examples: Examples) -> list[int]:
        """Return how many samples there are of each column."""
        if self.problem == "regression":
            return [len(examples)]
        return torch.bincount(examples.y, minlength=self.outputs).tolist()


@dataclass(frozen=True)
class Population:
    """All clients of a federation, by name, in a fixed order."""

    clients: Mapping[str, Client]
    outputs: int
    problem: Problem = "classification"
    labels: Sequence[str] = field(default_factory=tuple)
    public: Examples | None = None
    """A share that belongs to no client: the server's."""
    rows: Mapping[str, Mapping[str, Sequence[int]]] = field(default_factory=dict)
    """Which rows of the source each client's splits hold, where the source has rows."""
    tasks: Mapping[str, Goal] = field(default_factory=dict)
    """The goal of every task, where clients have several; else all have the one above."""
    preparations: Mapping[str, Prepared] = field(default_factory=dict)
    """How each client's raw readings became its inputs, where they were not given ready-made."""

    @property
    def goals(self) -> dict[str, Goal]:
        """The goal of every task that clients have, in their order."""
        usual = Goal(self.outputs, self.problem, self.labels)
        return {info.task: self.tasks.get(info.task, usual) for info in self.infos}

    def __len__(self) -> int:
        return len(self.clients)

    @property
    def infos(self) -> list[ClientInfo]:
        """What is known of every client, in order."""
        return [client.info for client in self.clients.values()]

    @property
    def split_hash(self) -> str:
        """What identifies the split: who holds which rows and targets; without rows, which inputs too.

        Also public samples, and models and capacities where clients have them. Clients without rows have
        their device, cohort and task from the user or from files: where these are said, they count too.
        """
        digest = hashlib.sha256()
        for name in self.clients:
            for piece in self._identity(name):
                digest.update(piece)
        if self.public is not None:
            for tensor in (self.public.x, self.public.y):
                digest.update(tensor.contiguous().numpy().tobytes())
        return digest.hexdigest()[:16]

    @property
    def split_hashes(self) -> dict[str, str]:
        """What identifies the share of each client whose data is here."""
        return {
            name: hashlib.sha256(b"".join(self._identity(name))).hexdigest()[:16]
            for name, client in self.clients.items()
            if client.data
        }

    def _identity(self, name: str) -> Iterator[bytes]:
        """Return what identifies a client's share, piece by piece."""
        client = self.clients[name]
        if client.info.model or client.info.capacity != 1:
            yield json.dumps([name, client.info.model, client.info.capacity]).encode()
        told = {key: getattr(client.info, key) for key in ("device", "cohort", "task")}
        told = {key: value for key, value in told.items() if value != getattr(ClientInfo, key)}
        if told and name not in self.rows:
            yield json.dumps([name, told]).encode()
        for split, examples in client.data.items():
            held = self.rows.get(name, {}).get(split)
            rows = np.zeros(0) if held is None else np.asarray(held, dtype=np.int64)
            pixels = 0 if held is not None else zlib.crc32(examples.x.contiguous().numpy().data)
            shape = list(examples.x.shape)
            yield json.dumps([name, split, shape, pixels]).encode()
            yield rows.tobytes()
            yield np.ascontiguousarray(examples.y.numpy()).tobytes()

    @property
    def nbytes(self) -> int:
        """Bytes of all data."""
        return sum(t.numel() * t.element_size() for t in self.tensors())

    def tensors(self) -> Iterable[Tensor]:
        """Every tensor of every client, in a fixed order."""
        for client in self.clients.values():
            for examples in client.data.values():
                yield examples.x
                yield examples.y

    def with_tensors(self, tensors: Iterable[Tensor]) -> Population:
        """Return the same population on other storage: tensors in the order of `tensors()`."""
        supply = iter(tensors)
        clients = {
            name: Client(
                client.info,
                {s: replace(e, x=next(supply), y=next(supply)) for s, e in client.data.items()},
            )
            for name, client in self.clients.items()
        }
        return replace(self, clients=clients)


@part
class PopulationSource:
    """Where a population comes from; `load` makes it, the same for the same seed."""

    name: ClassVar[str]
    summary: ClassVar[str]

    def load(self, seed: int, places: Places) -> Population:
        """Return the population; data sets are looked for in these places."""
        raise DataError(f"{type(self).__name__} does not say how it is loaded: give it a method load")


def label_words(about: Mapping[str, Any], task: str) -> list[str]:
    """Return the words of a task's labels from what `who_holds_what` told (empty: nothing was told)."""
    words, start = list(about.get("labels", [])), f"{task}: "
    own = [word.removeprefix(start) for word in words if word.startswith(start)]
    return own if task and own else words


def who_holds_what(population: Population) -> dict[str, Any]:
    """Return every client's attributes, counts, label histogram and preparation, as plain values.

    Preparations stand once each in a list, where there are any; a client names its own by its number there.
    """
    kinds = {kind: i for i, kind in enumerate(dict.fromkeys(population.preparations.values()))}
    goals = population.goals
    several = len(goals) > 1
    columns = [
        (task, f"{task}: {label}" if several else label)
        for task, goal in goals.items()
        for label in goal.columns
    ]

    def counts(info: ClientInfo, examples: Examples) -> list[int]:
        own = iter(goals[info.task].histogram(examples))
        return [next(own) if task == info.task else 0 for task, _ in columns]

    return {
        "labels": [label for _, label in columns],
        **({"preparations": [kind.to_json() for kind in kinds]} if kinds else {}),
        "clients": {
            name: {
                "device": client.info.device,
                "cohort": client.info.cohort,
                **({"model": client.info.model} if client.info.model else {}),
                **({"task": client.info.task} if client.info.task else {}),
                "samples": dict(client.info.samples),
                "labels": {split: counts(client.info, examples) for split, examples in client.data.items()},
                **({"preparation": kinds[own]} if (own := population.preparations.get(name)) else {}),
            }
            for name, client in population.clients.items()
        },
    }
