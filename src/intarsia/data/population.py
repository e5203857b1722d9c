"""Populations: clients with attributes and data of their own."""

from __future__ import annotations

import hashlib
import json
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, TypeVar

import numpy as np
import torch
from torch import Tensor

from intarsia.blocks import ME
from intarsia.core import DataError, Derived, Listed, part
from intarsia.data.places import Places

if TYPE_CHECKING:
    from intarsia.data.preparation import Prepared

T = TypeVar("T")
Problem = Literal["classification", "regression"]
SPLITS = ("train", "validation", "test")
ATTRIBUTES = ("device", "cohort", "capacity", "model", "task")
SEEN = 16
"""The data of how many clients is looked at where it is made when it is needed."""
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


class OnDemand(Mapping[str, Client], ABC):
    """Clients by name that are made when somebody asks for one: what is held of them all is little, and no data."""

    @abstractmethod
    def info(self, name: str) -> ClientInfo:
        """Return what is known of a client, without its data."""

    @abstractmethod
    def kind(self, name: str) -> Hashable:
        """Return what a client has in common with others of its kind: all attributes, and the shape of inputs."""

    @property
    @abstractmethod
    def kinds(self) -> Mapping[Hashable, str]:
        """The first client of every kind."""

    @abstractmethod
    def identity(self) -> Iterator[bytes]:
        """Return what identifies the split, piece by piece, without making everyone's data."""


@dataclass(frozen=True)
class _OfKind(Generic[T]):
    """The value of a client's kind."""

    clients: OnDemand
    values: Mapping[Hashable, T]

    def __call__(self, name: str) -> T:
        return self.values[self.clients.kind(name)]


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
        return {info.task: self.tasks.get(info.task, usual) for info in self.kinds}

    def __len__(self) -> int:
        return len(self.clients)

    @property
    def on_demand(self) -> bool:
        """Whether clients are made when they are needed: then nothing is asked of all of them that can be left out."""
        return isinstance(self.clients, OnDemand)

    @property
    def known(self) -> Mapping[str, ClientInfo]:
        """What is known of every client, by name, in order."""
        if isinstance(self.clients, OnDemand):
            return Derived(self.clients, self.clients.info)
        return {client.info.name: client.info for client in self.clients.values()}

    @property
    def infos(self) -> Sequence[ClientInfo]:
        """What is known of every client, in order."""
        if isinstance(self.clients, OnDemand):
            return Listed(list(self.clients), self.clients.info)
        return [client.info for client in self.clients.values()]

    @property
    def kinds(self) -> Sequence[ClientInfo]:
        """What is known of one client of every kind; without kinds, of every client."""
        if isinstance(self.clients, OnDemand):
            return [self.clients.info(name) for name in self.clients.kinds.values()]
        return self.infos

    def by_kind(self, value: Callable[[ClientInfo], T]) -> Mapping[str, T]:
        """Return a value for each client by name: one that clients of a kind have in common."""
        if not isinstance(self.clients, OnDemand):
            return {info.name: value(info) for info in self.infos}
        clients = self.clients
        values = {kind: value(clients.info(name)) for kind, name in clients.kinds.items()}
        return Derived(clients, _OfKind(clients, values))

    def some(self, most: int) -> Collection[str]:
        """Return the names of at most so many clients, spread evenly over all, in order."""
        names = list(self.clients)
        places = {round(i * (len(names) - 1) / max(1, most - 1)) for i in range(most)}
        return names if len(names) <= most else [names[place] for place in sorted(places)]

    @property
    def split_hash(self) -> str:
        """What identifies the split: who holds which rows and targets; without rows, which inputs too.

        Also public samples, and models and capacities where clients have them. Clients without rows have
        their device, cohort and task from the user or from files: where these are said, they count too.
        """
        digest = hashlib.sha256()
        for piece in self._identities():
            digest.update(piece)
        if self.public is not None:
            for tensor in (self.public.x, self.public.y):
                digest.update(tensor.contiguous().numpy().tobytes())
        return digest.hexdigest()[:16]

    @property
    def split_hashes(self) -> dict[str, str]:
        """What identifies the share of each client whose data is here, and not made when it is needed."""
        if self.on_demand:
            return {}
        return {
            name: hashlib.sha256(b"".join(self._identity(name))).hexdigest()[:16]
            for name, client in self.clients.items()
            if client.data
        }

    def _identities(self) -> Iterator[bytes]:
        """Return what identifies the shares of all clients, or, where they are made when needed, of some."""
        if isinstance(self.clients, OnDemand):
            yield from self.clients.identity()
        for name in self.some(SEEN) if self.on_demand else self.clients:
            yield from self._identity(name)

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


def who_holds_what(population: Population, names: Collection[str] | None = None) -> dict[str, Any]:
    """Return clients' attributes, counts, label histogram and preparation, as plain values: every client's, or of some.

    Preparations stand once each in a list, where there are any; a client names its own by its number there. Where
    clients are left out, `everyone` says of how many, and what quantiles their numbers of samples have.
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

    told = told_of(population) if names is None or not population.on_demand else names
    return {
        "labels": [label for _, label in columns],
        **({"preparations": [kind.to_json() for kind in kinds]} if kinds else {}),
        **({EVERYONE: sizes_of(population)} if len(told) < len(population) else {}),
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
            for name, client in ((name, population.clients[name]) for name in told)
        },
    }


EVERYONE = "everyone"
"""What stands in a record in place of the clients that it does not tell of."""
TOLD = 100
"""Of how many clients is told who holds what, where they are made when they are needed."""
QUANTILES = (0, 10, 25, 50, 75, 90, 100)


def told_of(population: Population) -> Collection[str]:
    """Return the clients whose holdings are told: all, or some where each would have to be made."""
    return population.some(TOLD) if population.on_demand else list(population.clients)


def sizes_of(population: Population) -> dict[str, Any]:
    """Return how many clients there are, and the quantiles (in per cent) of how many samples they have."""
    counts = [sum(info.samples.values()) for info in population.infos]
    values = np.percentile(counts, QUANTILES).tolist()
    return {"clients": len(counts), "samples": dict(zip(map(str, QUANTILES), values, strict=True))}
