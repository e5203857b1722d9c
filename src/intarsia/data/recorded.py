"""Clients as a run folder names them: enough to build their models again, without their data."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch

from intarsia.core import DataError
from intarsia.data.population import (
    EVERYONE,
    Client,
    ClientInfo,
    Examples,
    Goal,
    OnDemand,
    Population,
    Scaling,
    who_holds_what,
)

FORMAT = 2
"""Of `population.json`; the first only said who holds what."""


class DataAbsent(DataError):  # noqa: N818
    """A client's data that is not at hand."""


class NoData(Mapping[str, Examples]):
    """The data of a client that is known by name alone: whoever needs it is told."""

    def __init__(self, client: str) -> None:
        self.client = client

    def __getitem__(self, split: str) -> Examples:
        raise DataAbsent(f"the {split} data of client '{self.client}' is not at hand")

    def __contains__(self, split: object) -> bool:
        return False

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 0


@dataclass(frozen=True, eq=False)
class Bare(OnDemand):
    """Clients that are made when they are asked for, without data."""

    clients: OnDemand

    def __getitem__(self, name: str) -> Client:
        return Client(self.info(name), NoData(name))

    def __contains__(self, name: object) -> bool:
        return name in self.clients

    def __iter__(self) -> Iterator[str]:
        return iter(self.clients)

    def __len__(self) -> int:
        return len(self.clients)

    def info(self, name: str) -> ClientInfo:
        """Return what is known of a client."""
        return self.clients.info(name)

    def kind(self, name: str) -> Hashable:
        """Return what a client has in common with others of its kind."""
        return self.clients.kind(name)

    @property
    def kinds(self) -> Mapping[Hashable, str]:
        """The first client of every kind."""
        return self.clients.kinds

    def identity(self) -> Iterator[bytes]:
        """Return what identifies the split."""
        return self.clients.identity()


@dataclass(frozen=True)
class Form:
    """What a client's samples are before they are scaled, and how they are."""

    shape: tuple[int, ...]
    dtype: str = "float32"
    scaling: Scaling | None = None

    @classmethod
    def of(cls, client: Client) -> Form:
        """Return the form of a client's data."""
        first = next(iter(client.data.values()))
        return cls(client.info.shape, str(first.x.dtype).removeprefix("torch."), first.scaling)

    @property
    def kind(self) -> torch.dtype:
        """The samples' type of number."""
        found = getattr(torch, self.dtype, None)
        if not isinstance(found, torch.dtype):
            raise DataError(f"'{self.dtype}' is no type of number")
        return found

    def to_json(self) -> dict[str, Any]:
        """Return the form as plain values."""
        return {
            "shape": list(self.shape),
            "dtype": self.dtype,
            "scaling": asdict(self.scaling) if self.scaling else None,
        }

    @classmethod
    def from_json(cls, table: Mapping[str, Any]) -> Form:
        """Read a form."""
        scaling = table["scaling"]
        return cls(
            tuple(table["shape"]),
            table["dtype"],
            Scaling(scaling["factor"], tuple(scaling["mean"]), tuple(scaling["std"])) if scaling else None,
        )


def record_of(population: Population, names: Collection[str] | None = None) -> dict[str, Any]:
    """Return all of a population but its data, as plain values: `population.json`.

    Of clients that are made when they are needed, these alone are told (None: some).
    """
    about = who_holds_what(population, names if population.on_demand else None)
    return {
        "format": FORMAT,
        **about,
        "clients": {
            name: {
                **about["clients"][name],
                "capacity": client.info.capacity,
                "inputs": Form.of(client).to_json(),
                **({"profile": dict(client.info.profile)} if client.info.profile else {}),
            }
            for name, client in ((name, population.clients[name]) for name in about["clients"])
        },
        "goals": {
            task: {"outputs": goal.outputs, "problem": goal.problem, "labels": list(goal.labels)}
            for task, goal in population.goals.items()
        },
    }


def is_complete(record: Mapping[str, Any]) -> bool:
    """Return whether a record is enough to build all models from; the first format was not, nor are some clients."""
    return bool(record.get("format") == FORMAT and EVERYONE not in record)


def clients_in(record: Mapping[str, Any]) -> int:
    """Return how many clients there are, whether the record tells of all or of some."""
    return int(record.get(EVERYONE, {}).get("clients", len(record.get("clients", {}))))


def population_from(record: Mapping[str, Any]) -> Population:
    """Return the clients that a record names, without data."""
    try:
        clients = {name: Client(_info(name, own), NoData(name)) for name, own in record["clients"].items()}
        goals = {
            task: Goal(int(goal["outputs"]), goal["problem"], tuple(goal["labels"]))
            for task, goal in record["goals"].items()
        }
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise DataError(f"population.json is damaged: {type(error).__name__}: {error}") from error
    if not goals:
        raise DataError("population.json is damaged: it names no goal")
    first = next(iter(goals.values()))
    return Population(
        clients, first.outputs, first.problem, first.labels, tasks=goals if len(goals) > 1 else {}
    )


def form_from(record: Mapping[str, Any], client: str) -> Form:
    """Return the form of a client's data."""
    try:
        return Form.from_json(record["clients"][client]["inputs"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DataError(f"population.json is damaged: {type(error).__name__}: {error}") from error


def without_data(population: Population) -> Population:
    """Return the same clients, known by name alone."""
    if isinstance(population.clients, OnDemand):
        return replace(population, clients=Bare(population.clients), public=None)
    clients = {name: Client(client.info, NoData(name)) for name, client in population.clients.items()}
    return replace(population, clients=clients, public=None, rows={})


def _info(name: str, own: Mapping[str, Any]) -> ClientInfo:
    return ClientInfo(
        name,
        tuple(own["inputs"]["shape"]),
        {split: int(count) for split, count in own["samples"].items()},
        own["device"],
        own["cohort"],
        float(own["capacity"]),
        own.get("model", ""),
        own.get("task", ""),
        dict(own.get("profile", {})),
    )
