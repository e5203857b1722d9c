"""From rows with labels to the splits of every client."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BeforeValidator, Field, PlainSerializer

from intarsia.blocks import DataError, chance, part
from intarsia.blocks.part import build_part, describe
from intarsia.data.partitions import PARTITIONS, Partition, Windows, stratified
from intarsia.data.population import PopulationSource

Rows = NDArray[np.int64]
Splits = dict[str, Rows]
Flags = NDArray[np.bool_]
Share = Annotated[float, Field(ge=0, lt=1)]


@dataclass(frozen=True)
class Table:
    """What dealing needs to know of the rows: label (-1: not wanted), published part, natural id."""

    y: Rows
    train: Flags
    natural: Rows | None = None
    overlapping: bool = False
    validation: Flags | None = None
    """Rows set apart for validation already; None: a share of the training rows is."""


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
    clients: Annotated[int, Field(ge=1)] = 10
    partition: PartitionChoice = Field(default_factory=lambda: build_part(PARTITIONS, {"name": "iid"}, ""))
    split: Literal["own", "published"] = "own"
    """`own`: all samples are dealt, then each client's are split; `published`: the published training and
    test parts are dealt apart, by the same rule."""
    test: Annotated[float, Field(gt=0, lt=1)] = 0.2
    """Share of a client's samples that it is tested on (with `split = "own"`)."""
    validation: Share = 0.0
    """Share of a client's training samples for choosing the best round."""
    public: Share = 0.0
    """Share of all samples that is dealt to nobody: the server's."""
    labels: tuple[str, ...] = ()
    """The labels to keep, in this order (none: all)."""
    per_label: tuple[int, ...] = ()
    """At most this many samples of a label for training and for testing (none: all)."""
    fraction: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Share of all samples that is used at all."""
    device: str = ""
    """The clients' device (empty: the data set's name); it also begins their names."""
    capacity: Annotated[float, Field(gt=0)] = 1.0
    model: str = ""

    def cohort(self, client: int, classes: int) -> str:
        """Return the cohort of a client: its group, if the partition makes groups."""
        if isinstance(self.partition, Windows):
            return f"group-{self.partition.group(client, classes)}"
        return "default"

    def attributes(self, client: int, classes: int) -> dict[str, Any]:
        """Return the attributes of a client."""
        return {
            "device": self.device or self.dataset,
            "cohort": self.cohort(client, classes),
            "capacity": self.capacity,
            "model": self.model,
        }

    def client_name(self, client: int) -> str:
        """Return the name of a client."""
        return f"{self.device or self.dataset}-{client:0{len(str(self.clients - 1))}d}"

    def deal(self, table: Table, seed: int) -> tuple[list[Splits], Rows]:
        """Return the splits of every client, and the public rows; together no row is used twice."""
        rest, public = self._public(table.y, self._used(table, seed), seed)
        if self.split == "own" and not table.overlapping:
            ways = self._ways(self.test)
            shares = self._deal(table, rest, seed)
            return [self._split(table.y, own, ways, seed, i) for i, own in enumerate(shares)], public
        train = self._apart(table, seed) if self.split == "own" else table.train
        parts = self._deal_parts(table, rest, train, seed)
        if table.validation is not None:
            return [{s: own for s, own in client.items() if len(own)} for client in parts], public
        splits = [self._split(table.y, own["train"], self._ways(0), seed, i) for i, own in enumerate(parts)]
        return [split | {"test": own["test"]} for split, own in zip(splits, parts, strict=True)], public

    def _ways(self, test: float) -> dict[str, float]:
        train = 1 - test
        return {"train": train * (1 - self.validation), "validation": train * self.validation, "test": test}

    def _deal_parts(self, table: Table, rows: Rows, train: Flags, seed: int) -> list[Splits]:
        """Deal the parts: apart if the rule gives all of them the same labels, else at once."""
        checks = np.zeros_like(train) if table.validation is None else table.validation
        flags = {"train": train & ~checks, "test": ~train & ~checks}
        if table.validation is not None and self.validation:
            flags["validation"] = checks
        if self.split == "published" and self.partition.by_rule:
            dealt = {name: self._deal(table, rows[flag[rows]], seed) for name, flag in flags.items()}
            return [{name: shares[i] for name, shares in dealt.items()} for i in range(self.clients)]
        shares = self._deal(table, rows, seed)
        return [{name: own[flag[own]] for name, flag in flags.items()} for own in shares]

    def _apart(self, table: Table, seed: int) -> Flags:
        """Draw, for each picture as a whole, whether its samples are for training."""
        if table.natural is None:
            raise DataError(f"data set '{self.dataset}' does not say which samples overlap")
        pictures, which = np.unique(table.natural, return_inverse=True)
        drawn = chance.numpy_generator(seed, "pictures", self.dataset).random(len(pictures))
        return np.asarray(drawn[which] >= self.test)

    def _used(self, table: Table, seed: int) -> Rows:
        """Return the rows that are used at all: labelled, within the fraction and the limits a label."""
        rows = np.flatnonzero(table.y >= 0)
        if self.fraction < 1:
            kept = max(1, round(self.fraction * len(rows)))
            rows = np.sort(chance.numpy_generator(seed, "fraction", self.dataset).permutation(rows)[:kept])
        if not self.per_label:
            return rows
        if len(self.per_label) != 2:
            raise DataError("population.per_label: give two numbers, for training and for testing")
        return np.sort(np.concatenate(self._limited(table, rows, seed)))

    def _limited(self, table: Table, rows: Rows, seed: int) -> list[Rows]:
        kept = [] if table.validation is None else [rows[table.validation[rows]]]
        others = rows if table.validation is None else rows[~table.validation[rows]]
        for name, limit in zip(("train", "test"), self.per_label, strict=True):
            own = others[table.train[others] == (name == "train")]
            for label in range(int(table.y.max()) + 1):
                there = own[table.y[own] == label]
                if len(there) < limit:
                    raise DataError(
                        f"data set '{self.dataset}' has {len(there)} {name} samples of label {label}, "
                        f"population.per_label asks for {limit}: lower it, or change how it is split"
                    )
                random = chance.numpy_generator(seed, "per label", self.dataset, name, label)
                kept.append(random.permutation(there)[:limit])
        return kept

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
        return stratified(y, rows, wanted, seed, f"split {self.client_name(client)}")
