"""Populations of very many clients: data that is made, or mapped, when a client is asked, and let go of again."""

from __future__ import annotations

import hashlib
import json
from array import array
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, SupportsIndex, get_args

import numpy as np
import torch
from numpy.typing import NDArray

from intarsia.core import DataError, in_words
from intarsia.data.own import attributes_of, make_client, pair_of
from intarsia.data.population import (
    ATTRIBUTES,
    SPLITS,
    Client,
    ClientInfo,
    Examples,
    OnDemand,
    Population,
    Problem,
)

Splits = Mapping[str, tuple[Any, Any]]
"""A client's data: (x, y) by split."""
Counts = Mapping[str, int | Sequence[int] | NDArray[np.integer[Any]]]
"""How many samples clients have by split: a number for all, or one a client."""


class Made(Mapping[str, Examples]):
    """A client's data by split, made when the first of them is asked for."""

    def __init__(self, clients: ClientsOnDemand, info: ClientInfo) -> None:
        self._clients = clients
        self._info = info
        self._made: Mapping[str, Examples] | None = None

    def __getitem__(self, split: str) -> Examples:
        if split not in self._info.samples:
            raise KeyError(split)
        if self._made is None:
            self._made = self._clients.data_of(self._info)
        return self._made[split]

    def __contains__(self, split: object) -> bool:
        return split in self._info.samples

    def __iter__(self) -> Iterator[str]:
        return iter(self._info.samples)

    def __len__(self) -> int:
        return len(self._info.samples)


@dataclass(frozen=True)
class Kind:
    """What clients of one kind have in common."""

    shape: tuple[int, ...]
    """The shape of inputs."""
    attributes: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class ClientsOnDemand(OnDemand):
    """Clients of which names, counts and kinds are held, as columns, and how the data of one is made."""

    names: Sequence[str]
    counts: Mapping[str, NDArray[np.int64]]
    """How many samples each client has, by split."""
    load: Callable[[str], Splits]
    told: Sequence[Kind]
    """What there is of kinds."""
    kind_of: NDArray[np.int32]
    """The number of each client's kind."""
    problem: Problem = "classification"
    classes: int = 0
    """How many labels there are (0: any)."""

    def __getitem__(self, name: str) -> Client:
        info = self.info(name)
        return Client(info, Made(self, info))

    def __contains__(self, name: object) -> bool:
        return name in self._number

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)

    @cached_property
    def _number(self) -> dict[str, int]:
        return {name: number for number, name in enumerate(self.names)}

    def info(self, name: str) -> ClientInfo:
        """Return what is known of a client."""
        number = self._number[name]
        kind = self.told[self._kinds[number]]
        samples = {split: of[number] for split, of in self._samples.items() if of[number]}
        return ClientInfo(name, kind.shape, samples, **kind.attributes)

    @cached_property
    def _samples(self) -> dict[str, array[int]]:
        """The counts, as plain numbers that are quick to read one by one."""
        return {split: array("q", of.tolist()) for split, of in self.counts.items()}

    @cached_property
    def _kinds(self) -> array[int]:
        return array("l", self.kind_of.tolist())

    def kind(self, name: str) -> int:
        """Return the number of a client's kind."""
        return self._kinds[self._number[name]]

    @cached_property
    def _firsts(self) -> dict[Hashable, str]:
        kinds, places = np.unique(self.kind_of, return_index=True)
        return {kind: self.names[place] for kind, place in zip(kinds.tolist(), places.tolist(), strict=True)}

    @property
    def kinds(self) -> Mapping[Hashable, str]:
        """The first client of every kind."""
        return self._firsts

    def data_of(self, info: ClientInfo) -> Mapping[str, Examples]:
        """Make a client's data; what is not what was said of it is refused."""
        made = _made(info.name, self.load, self.problem)
        found = (made.info.shape, dict(made.info.samples))
        if found != (info.shape, dict(info.samples)):
            raise DataError(
                f"client '{info.name}' was said to have inputs of shape {list(info.shape)} and {dict(info.samples)} "
                f"samples; the function that makes its data gave {list(found[0])} and {found[1]}: let both be the same"
            )
        for split, examples in made.data.items() if self.classes else ():
            low, high = int(examples.y.min()), int(examples.y.max())
            if low < 0 or high >= self.classes:
                raise DataError(
                    f"client '{info.name}' has labels from {low} to {high} in {split}; with {self.classes} classes "
                    f"they must lie in 0 ... {self.classes - 1}"
                )
        return made.data

    def identity(self) -> Iterator[bytes]:
        """Return names, counts and attributes of all."""
        yield hashlib.sha256("\n".join(self.names).encode()).digest()
        for split, of in self.counts.items():
            yield split.encode() + np.ascontiguousarray(of).tobytes()
        yield self.kind_of.tobytes()
        yield json.dumps([[list(kind.shape), dict(kind.attributes)] for kind in self.told]).encode()


def from_function(
    load: Callable[[str], Splits],
    names: Sequence[str],
    samples: Counts,
    *,
    classes: int | None = None,
    problem: Problem = "classification",
    **attributes: Any,
) -> Population:
    """Make a population of clients whose data a function makes, or maps, each time that a client is asked.

    `load(name)` returns `{"train": (x, y), "test": (x, y)}`, the same every time. `samples` says how many there are by
    split: a number for all clients, or a list with one a client. `device`, `cohort`, `capacity`, `model` and `task` are
    a value for all, or a list with one a client. `classes` is the number of labels; a regression needs none.

    Nothing of a client is held but its name, counts and attributes. Workers call the function, so that it must not
    change anything; where processes cannot be forked it must be importable.
    """
    names = _names(names)
    if not callable(load):
        raise DataError(f"load: give a function of a client's name, not {in_words(load)}")
    _check_goal(classes, problem)
    attributes = {key: value for key, value in attributes.items() if value is not None}
    counts, (found, kind_of) = _counted(samples, len(names)), _kinds(attributes, names)
    told = _with_shapes(found, kind_of, lambda place: _made(names[place], load, problem))
    clients = ClientsOnDemand(names, counts, load, told, kind_of, problem, classes or 0)
    first, again = (clients[names[0]].data["train"] for _ in range(2))
    if not (torch.equal(first.x, again.x) and torch.equal(first.y, again.y)):
        raise DataError(
            f"the function made other data for client '{names[0]}' when it was called again: let it give the same each "
            "time (draw with a seed that follows from the name)"
        )
    return Population(clients, classes or first.y.shape[1], problem)


def _made(name: str, load: Callable[[str], Splits], problem: Problem) -> Client:
    """Return a client with the data that a function makes; what it raises is said with the client's name."""
    try:
        data = load(name)
    except DataError:
        raise
    except Exception as error:
        raise DataError(
            f"the function that makes the data of client '{name}' failed: {type(error).__name__}: {error}"
        ) from error
    if not isinstance(data, Mapping):
        raise DataError(
            f"the function that makes the data of client '{name}' gave {in_words(data)}: let it return "
            '{"train": (x, y), "test": (x, y)}'
        )
    return make_client(name, {s: pair_of(name, s, data[s]) for s in SPLITS if s in data}, problem)


def _check_goal(classes: Any, problem: Any) -> None:
    """Refuse a kind of problem that there is not, and a number of labels that does not go with it."""
    if problem not in get_args(Problem):
        raise DataError(f"problem: write classification or regression, not {in_words(problem)}")
    if problem == "regression" and classes is not None:
        raise DataError("classes: a regression has none: leave it out")
    if problem == "classification" and classes is None:
        raise DataError(
            "classes: say how many labels there are; nobody looks at all clients' data to count them"
        )
    if classes is not None and (not isinstance(classes, SupportsIndex) or int(classes) < 1):
        raise DataError(f"classes: give a whole number above 0, not {in_words(classes)}")


def _with_shapes(
    kinds: Sequence[Mapping[str, Any]], kind_of: NDArray[np.int32], made: Callable[[int], Client]
) -> list[Kind]:
    """Return kinds with the shape of their inputs, from the first client of those alike in all but the cohort."""
    shapes: dict[Hashable, tuple[int, ...]] = {}
    found = []
    for number, attributes in enumerate(kinds):
        alike = tuple((key, value) for key, value in attributes.items() if key != "cohort")
        if alike not in shapes:
            shapes[alike] = made(int(np.argmax(kind_of == number))).info.shape
        found.append(Kind(shapes[alike], attributes))
    return found


def _names(given: Any) -> list[str]:
    """Return the names of clients, each of which must be another."""
    if isinstance(given, str | bytes) or not isinstance(given, Iterable):
        raise DataError(f'names: give a list of clients\' names, ["truck-1", ...], not {in_words(given)}')
    names = [str(name) for name in given]
    if not names:
        raise DataError("a population needs at least one client")
    for name in names:
        if not name.strip() or any("\ud800" <= sign <= "\udfff" for sign in name):
            raise DataError(f"names: {name!r} is no name of a client: write a word")
    if len(set(names)) < len(names):
        twice = Counter(names).most_common(1)[0][0]
        raise DataError(f"two clients are called '{twice}': give each a name of its own")
    return names


def _counted(samples: Counts, clients: int) -> dict[str, NDArray[np.int64]]:
    """Return how many samples each client has, by split."""
    if not isinstance(samples, Mapping) or not {"train", "test"} <= samples.keys() <= set(SPLITS):
        raise DataError("samples: say how many there are of `train` and of `test`, and maybe of `validation`")
    return {split: _counts(split, samples[split], clients) for split in SPLITS if split in samples}


def _counts(split: str, said: Any, clients: int) -> NDArray[np.int64]:
    counts = np.asarray(said)
    if counts.ndim == 0:
        counts = np.full(clients, counts)
    if counts.shape != (clients,) or not np.issubdtype(counts.dtype, np.integer) or counts.min() < 0:
        raise DataError(
            f"samples: '{split}' must be a whole number, or a list with one for each of {clients} clients"
        )
    if split != "validation" and counts.min() == 0:
        which = int(np.argmin(counts))
        raise DataError(f"samples: client {which + 1} of {clients} has no {split} data: leave the client out")
    return counts.astype(np.int64)


def _kinds(
    attributes: Mapping[str, Any], names: Sequence[str]
) -> tuple[list[Mapping[str, Any]], NDArray[np.int32]]:
    """Return all combinations of attributes that there are, and the number of each client's."""
    unknown = sorted(attributes.keys() - set(ATTRIBUTES))
    if unknown:
        raise DataError(f"clients have no attribute '{unknown[0]}'; they have: {', '.join(ATTRIBUTES)}")
    columns = [_column(key, value, names) for key, value in attributes.items()]
    if not columns:
        return [{}], np.zeros(len(names), np.int32)
    numbers: dict[tuple[Any, ...], int] = {}
    kind_of = [numbers.setdefault(told, len(numbers)) for told in zip(*columns, strict=True)]
    return [dict(zip(attributes, told, strict=True)) for told in numbers], np.asarray(kind_of, np.int32)


def _column(key: str, value: Any, names: Sequence[str]) -> list[Any]:
    """Return what an attribute is for each client."""
    given = value if isinstance(value, list | tuple | np.ndarray) else [value] * len(names)
    if len(given) != len(names):
        raise DataError(f"{key}: give one value, or a list with one for each of {len(names)} clients")
    checked: dict[Any, Any] = {}
    for name, own in zip(names, given, strict=True):
        if not isinstance(own, Hashable) or own is None:
            raise DataError(f"{key}: client '{name}' has {in_words(own)}: write a word, or a number")
        if own not in checked:
            checked[own] = attributes_of(name, {key: own})[key]
    return [checked[own] for own in given]
