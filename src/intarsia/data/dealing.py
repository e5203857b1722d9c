"""From rows with labels to the splits of every client; model zoos: how many clients hold which architecture."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BeforeValidator, Field, PlainSerializer

from intarsia.core import DataError, SettingsError, build_part, chance, describe, part, suggest
from intarsia.data.partitions import PARTITIONS
from intarsia.data.partitions.base import Partition
from intarsia.data.partitions.cohorts import Cohorts
from intarsia.data.partitions.iid import IID
from intarsia.data.partitions.stratified import stratified
from intarsia.data.partitions.windows import Windows
from intarsia.data.population import SPLITS, PopulationSource

Rows = NDArray[np.int64]
Splits = dict[str, Rows]
Parts = NDArray[np.str_]
Share = Annotated[float, Field(ge=0, lt=1)]


@dataclass(frozen=True)
class Table:
    """What dealing needs to know of the rows: label (-1: not wanted), published part, natural id."""

    y: Rows
    part: Parts
    """The part that a row belongs to as published: train, test, validation."""
    natural: Rows | None = None
    overlapping: bool = False


def _partition(value: Any) -> Any:
    if isinstance(value, Partition):
        return value
    return build_part(
        PARTITIONS, {"name": value} if isinstance(value, str) else value, "population.partition"
    )


PartitionChoice = Annotated[Partition, BeforeValidator(_partition), PlainSerializer(describe)]


@part
class Dealt(PopulationSource):
    """What populations have in common whose samples are dealt to clients by a partition."""

    dataset: str
    """Which data set is dealt (intarsia list datasets)."""
    clients: Annotated[int, Field(ge=1)] = 10
    """How many clients there are."""
    partition: PartitionChoice = Field(default_factory=lambda: build_part(PARTITIONS, {"name": "iid"}, ""))
    split: Literal["own", "published", "drawn"] = "own"
    """`own`: all samples are dealt, then each client's are split; `published`: the published training and
    test parts are dealt apart, by the same rule; `drawn`: so are parts that are drawn from both."""
    test: Annotated[float, Field(gt=0, lt=1)] = 0.2
    """Share of a client's samples that it is tested on (with `split = "own"`)."""
    validation: Share = 0.0
    """Share of a client's training samples for choosing the best round."""
    public: Share = 0.0
    """Share of all samples that is dealt to nobody: the server's."""
    labels: tuple[str, ...] = ()
    """The labels to keep, in this order (none: all)."""
    per_label: tuple[int, ...] = ()
    """Exactly this many samples of a label for training and for testing (none: all)."""
    fraction: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Share of all samples that is used at all."""
    limit: Annotated[int, Field(ge=0)] = 0
    """At most so many samples are used at all (0: as many as there are)."""
    device: str = ""
    """The clients' device (empty: the data set's name); it also begins their names."""
    capacity: Annotated[float, Field(gt=0)] = 1.0
    """The capacity of all clients: HeteroFL cuts its slices by it."""
    capacities: tuple[Annotated[float, Field(gt=0)], ...] = ()
    """The clients' capacities, in turns (none: all have the one above)."""
    model: str = ""
    """The name of all clients' model, of those in `[models]` (empty: the usual one)."""
    zoo: str = ""
    """A model zoo that is dealt to the clients by lot, I, II or III; `model` is then left empty."""
    task: str = ""
    """The clients' task, where members of a joint population predict different things."""

    def cohort(self, client: int, classes: int) -> str:
        """Return the cohort of a client: its group, if the partition makes groups."""
        if isinstance(self.partition, Windows):
            return f"group-{self.partition.group(client, classes)}"
        if isinstance(self.partition, Cohorts):
            return f"cohort-{self.partition.cohort(client)}"
        return "default"

    def attributes(self, client: int, classes: int, seed: int) -> dict[str, Any]:
        """Return the attributes of a client."""
        capacities = self.capacities or (self.capacity,)
        return {
            "device": self.device or self.dataset,
            "cohort": self.cohort(client, classes),
            "capacity": capacities[client % len(capacities)],
            "model": self._model(client, seed),
            "task": self.task,
        }

    def _model(self, client: int, seed: int) -> str:
        """Return the name of a client's model: of all, or what the zoo has for it."""
        if not self.zoo:
            return self.model
        if self.model:
            raise SettingsError(
                "population.model: clients' models come from population.zoo; leave one of them out"
            )
        return deal_zoo(self.zoo, self.clients, seed)[client]

    def client_name(self, client: int) -> str:
        """Return the name of a client."""
        return f"{self.device or self.dataset}-{client:0{len(str(self.clients - 1))}d}"

    def deal(self, table: Table, seed: int) -> tuple[list[Splits], Rows]:
        """Return the splits of every client, and the public rows; together no row is used twice."""
        rows = self._used(table, seed)
        if table.overlapping:
            part_of = self._by_picture(table, seed)
            rest, public = rows[part_of[rows] != "public"], rows[part_of[rows] == "public"]
        else:
            rest, public = self._public(table.y, rows, seed)
            part_of = self._drawn(table, rest, seed) if self.split == "drawn" else table.part
        if self.split == "own" and not table.overlapping:
            if self.per_label:
                raise DataError('population.per_label: needs split = "published" or "drawn"')
            shares = self._deal(table, rest, seed)
            return [
                self._split(table.y, own, self._ways(self.test), seed, i) for i, own in enumerate(shares)
            ], public
        rest = self._limited(table, part_of, rest[part_of[rest] != ""], seed)
        return self._splits(table, self._deal_parts(table, part_of, rest, seed), seed), public

    def _splits(self, table: Table, parts: list[Splits], seed: int) -> list[Splits]:
        """Take validation out of the training rows, unless it was set apart already."""
        if any(len(own.get("validation", ())) for own in parts) or not self.validation:
            return [{name: rows for name, rows in own.items() if len(rows)} for own in parts]
        splits = [self._split(table.y, own["train"], self._ways(0), seed, i) for i, own in enumerate(parts)]
        return [split | {"test": own["test"]} for split, own in zip(splits, parts, strict=True)]

    def _ways(self, test: float) -> dict[str, float]:
        train = 1 - test
        return {"train": train * (1 - self.validation), "validation": train * self.validation, "test": test}

    def _deal_parts(self, table: Table, part_of: Parts, rows: Rows, seed: int) -> list[Splits]:
        """Deal the parts: apart if the rule gives all of them the same labels, else at once."""
        parts = {name: rows[part_of[rows] == name] for name in SPLITS if (part_of[rows] == name).any()}
        if table.overlapping or not self.partition.by_rule:
            shares = self._deal(table, rows, seed)
            return [{name: own[part_of[own] == name] for name in parts} for own in shares]
        self._check_labels(table, parts)
        dealt = {name: self._deal(table, own, seed) for name, own in parts.items()}
        return [{name: shares[i] for name, shares in dealt.items()} for i in range(self.clients)]

    def _check_labels(self, table: Table, parts: Splits) -> None:
        """Parts that are dealt apart must have the same labels, or clients would be tested on others."""
        held = {name: set(np.unique(table.y[rows]).tolist()) for name, rows in parts.items()}
        every = set().union(*held.values())
        for name, labels in held.items():
            if labels != every and not isinstance(self.partition, IID):
                lacking = ", ".join(str(label) for label in sorted(every - labels))
                raise DataError(
                    f"data set '{self.dataset}': the {name} part has no sample of label {lacking}; choose labels "
                    "that all parts have (population.labels), or split it in another way"
                )

    def _by_picture(self, table: Table, seed: int) -> Parts:
        """Draw, for each picture as a whole, what its samples are for: they overlap."""
        if table.natural is None:
            raise DataError(f"data set '{self.dataset}' does not say which samples overlap")
        pictures, which = np.unique(table.natural, return_inverse=True)
        drawn = chance.numpy_generator(seed, "pictures", self.dataset).random(len(pictures))
        ways = {name: share * (1 - self.public) for name, share in self._ways(self.test).items()}
        borders = np.cumsum([self.public, *ways.values()])
        names = np.asarray(["public", *ways])
        return np.asarray(names[np.searchsorted(borders[:-1], drawn, side="right")][which])

    def _drawn(self, table: Table, rows: Rows, seed: int) -> Parts:
        """Draw a training and a test part of every label, whatever was published: as many as asked for."""
        part_of = np.full(len(table.y), "", dtype="<U10")
        for label in np.unique(table.y[rows]):
            own = chance.numpy_generator(seed, "drawn", self.dataset, int(label)).permutation(
                rows[table.y[rows] == label]
            )
            test = self.per_label[1] if len(self.per_label) == 2 else round(len(own) * self.test)
            part_of[own[:test]] = "test"
            part_of[own[test:]] = "train"
        return part_of

    def _used(self, table: Table, seed: int) -> Rows:
        """Return the rows that are used at all: with a wanted label, within the fraction and the limit."""
        rows = np.flatnonzero(table.y >= 0)
        kept = max(1, round(self.fraction * len(rows)))
        kept = min(kept, self.limit or kept)
        if kept < len(rows):
            rows = np.sort(chance.numpy_generator(seed, "fraction", self.dataset).permutation(rows)[:kept])
        return rows

    def _limited(self, table: Table, part_of: Parts, rows: Rows, seed: int) -> Rows:
        """Keep exactly as many samples of a label as `per_label` asks for."""
        if not self.per_label:
            return rows
        if len(self.per_label) != 2:
            raise DataError("population.per_label: give two numbers, for training and for testing")
        kept = [rows[part_of[rows] == "validation"]]
        for name, limit in zip(("train", "test"), self.per_label, strict=True):
            own = rows[part_of[rows] == name]
            for label in np.unique(table.y[table.y >= 0]):
                there = own[table.y[own] == label]
                if len(there) < limit:
                    raise DataError(
                        f"data set '{self.dataset}' has {len(there)} {name} samples of label {label}, "
                        f"population.per_label asks for {limit}: lower it, or change how it is split"
                    )
                random = chance.numpy_generator(seed, "per label", self.dataset, name, int(label))
                kept.append(random.permutation(there)[:limit])
        return np.sort(np.concatenate(kept))

    def _public(self, y: Rows, rows: Rows, seed: int) -> tuple[Rows, Rows]:
        if self.public == 0:
            return rows, rows[:0]
        shares = stratified(y, rows, {"rest": 1 - self.public, "public": self.public}, seed, "public")
        return shares["rest"], shares["public"]

    def _deal(self, table: Table, rows: Rows, seed: int) -> list[Rows]:
        natural = None if table.natural is None else table.natural[rows]
        shares = self.partition.deal(table.y[rows], self.clients, seed, natural)
        return [rows[share] for share in shares]

    def _split(self, y: Rows, rows: Rows, ways: Mapping[str, float], seed: int, client: int) -> Splits:
        wanted = {name: share for name, share in ways.items() if share > 0}
        return stratified(y, rows, wanted, seed, f"split {self.dataset} {client}")


ZOOS: dict[str, dict[str, int]] = {
    "I": {
        "cnn1": 8,
        "cnn2": 7,
        "cnn3": 7,
        "cnn4": 7,
        "mobilenet_v1": 7,
        "mobilenet_v2": 7,
        "mobilenet_v3": 7,
    },
    "II": {"mobilenet_v1": 16, "mobilenet_v2": 17, "mobilenet_v3": 17},
    "III": {"cnn1": 12, "cnn2": 12, "cnn3": 12, "cnn4": 14},
}
"""How many of fifty clients hold which model (Wang et al. 2024, pFedClub, section 4.1)."""


def deal_zoo(name: str, clients: int, seed: int) -> list[str]:
    """Return the name of each client's model: the zoo's shares, in an order that the seed draws.

    Where the shares do not come out even, the largest remainders get one more; of equal ones, the first.
    """
    if name not in ZOOS:
        raise SettingsError(f"population.zoo: there is no model zoo '{name}'{suggest(name, ZOOS)}")
    animals = ZOOS[name]
    total = sum(animals.values())
    shares = [count * clients / total for count in animals.values()]
    counts = [int(share) for share in shares]
    order = sorted(range(len(shares)), key=lambda i: counts[i] - shares[i])
    for i in order[: clients - sum(counts)]:
        counts[i] += 1
    dealt = [animal for animal, count in zip(animals, counts, strict=True) for _ in range(count)]
    places = chance.numpy_generator(seed, "model zoo", name).permutation(clients)
    return [dealt[place] for place in places]
