"""A published experiment: its settings at a scale, its figures, and what to read from each run."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from intarsia.core import SettingsError, build_part, describe, part, suggest
from intarsia.experiment import Run, load
from intarsia.methods import OWN

Count = Annotated[int, Field(ge=1)]
Place = tuple[str, str]
"""A row and a column of a published table, named as in the paper."""
Reading = Callable[[Run], Mapping[Place, float]]


@part
class Scale:
    """How much of a published experiment is run; it is printed with every result."""

    name: ClassVar[str] = "scale"

    clients: Count
    rounds: Count
    seeds: Count
    every: Count
    """Rounds between evaluations."""


@dataclass(frozen=True)
class Trial:
    """One run of a study: its settings, without the seed, and what is read from it."""

    name: str
    settings: Mapping[str, Any]
    read: Reading


@dataclass(frozen=True)
class Cell:
    """One figure: the paper's, and ours as mean and deviation over seeds."""

    row: str
    column: str
    paper: float | None
    ours: float | None
    std: float | None
    seeds: int
    scale: str
    remark: str = ""
    """What must be said with our figure wherever it stands: a random base."""


class Study(ABC):
    """A table or figure of a paper that can be run again at a scale."""

    name: ClassVar[str]
    title: ClassVar[str]
    columns: ClassVar[str]
    """What the columns stand for."""
    paper: ClassVar[Mapping[Place, float]]
    """The published figures."""
    scales: ClassVar[Mapping[str, Scale]]
    picture: ClassVar[Literal["bars", "lines", "points"]] = "bars"
    values: ClassVar[str] = "test accuracy, %"
    beside: ClassVar[frozenset[str]] = frozenset()
    """Rows about something else than these values: they are in the table alone."""

    @abstractmethod
    def trials(self, scale: Any, seed: int) -> Sequence[Trial]:
        """Return the runs of one seed."""

    def scale(self, name: str, changes: Sequence[str] = ()) -> tuple[str, Scale]:
        """Return a scale and its words; `changes` are `clients=36` and the like."""
        if name not in self.scales:
            raise SettingsError(f"study '{self.name}' has no scale '{name}'{suggest(name, self.scales)}")
        usual = self.scales[name]
        table = _changed(describe(usual), changes)
        scale: Scale = build_part({usual.name: type(usual)}, table, "scale")
        named = name if scale == usual else f"{name}, changed"
        parts = [f"{key} {_plain(value)}" for key, value in describe(scale).items() if key != "name"]
        return f"{named}: {', '.join(parts)}", scale

    def remark(self, scale: Any) -> str:
        """Return what must be said with every figure of ours at a scale; nothing by default."""
        return ""

    def shown(self, row: str) -> bool:
        """Whether a row is in the picture."""
        return row not in self.beside

    def derived(self, readings: Mapping[Place, Sequence[float]]) -> Mapping[Place, Sequence[float]]:
        """Return what follows from several runs of a seed, one value a seed; none by default."""
        return {}

    def order(self, readings: Mapping[Place, Sequence[float]]) -> list[Place]:
        """Return all places, rows together: the paper's first, then ours that the paper does not have."""
        places = [*self.paper, *(place for place in readings if place not in self.paper)]
        rows = list(dict.fromkeys(row for row, _ in places))
        return sorted(places, key=lambda place: rows.index(place[0]))


def _changed(table: dict[str, Any], changes: Sequence[str]) -> dict[str, Any]:
    """Apply `key=value` changes, read as settings are; a wrong key is found when the scale is built."""
    for change in changes:
        key, sign, _ = change.partition("=")
        if not sign or "." in key or key.strip() == "name":
            raise SettingsError(f"'{change}' is no change of a scale: write, for example, rounds=50")
        read = load({}, [f"population.{change.strip()}"]).population
        table |= {name: value for name, value in read.items() if name != "name"}
    return table


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value).replace('"', "")


def pooled(run: Run, device: str = "") -> dict[int, float]:
    """Return correct over total in per cent, over all clients (of a device, if one is named), by round.

    Where all clients have the same model, that is its accuracy on all their test samples together.
    """
    everyone = run.population["clients"].items()
    clients = {name for name, about in everyone if device in ("", about["device"])}
    correct: dict[int, int] = defaultdict(int)
    total: dict[int, int] = defaultdict(int)
    for row in run.metrics:
        if row["client"] in clients and row["split"] == "test" and row["stage"] == OWN:
            correct[row["round"]] += row["correct"]
            total[row["round"]] += row["n"]
    return {round: 100 * correct[round] / total[round] for round in sorted(total)}
