"""A published experiment: its settings at a scale, its figures, and what to read from each run."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
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
class StudyRun:
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


Readings = Mapping[Place, Sequence[float]]
"""What was read at each place, one value a seed."""


def rows_together(paper: Mapping[Place, float], readings: Readings) -> list[Place]:
    """Return all places, rows together: the paper's first, then ours that the paper does not have."""
    places = [*paper, *(place for place in readings if place not in paper)]
    rows = list(dict.fromkeys(row for row, _ in places))
    return sorted(places, key=lambda place: rows.index(place[0]))


@dataclass(frozen=True)
class Study:
    """A table or figure of a paper that can be run again at a scale."""

    name: str
    title: str
    columns: str
    """What the columns stand for."""
    scales: Mapping[str, Scale]
    play: Callable[[Any, int], Iterable[StudyRun]]
    """The runs at a scale with a seed."""
    paper: Mapping[Place, float] = field(default_factory=dict)
    """The published figures."""
    picture: Literal["bars", "lines", "points"] = "bars"
    values: str = "test accuracy, %"
    beside: Callable[[str], bool] = lambda row: False
    """Whether a row is about something else than these values: it is in the table alone."""
    remark: Callable[[Any], str] = lambda scale: ""
    """What must be said with every figure of ours at a scale."""
    derived: Callable[[Readings], Readings] = lambda readings: {}
    """What follows from several runs of a seed, one value a seed."""
    arranged: Callable[[Mapping[Place, float], Readings], list[Place]] = rows_together
    """The places of published figures and readings, in the order of the table."""

    def runs(self, scale: Any, seed: int) -> list[StudyRun]:
        """Return the runs of one seed."""
        return list(self.play(scale, seed))

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

    def order(self, readings: Readings) -> list[Place]:
        """Return all places in the order of the table."""
        return self.arranged(self.paper, readings)


def study(
    name: str, title: str, columns: str, scales: Mapping[str, Any], **more: Any
) -> Callable[[Callable[[Any, int], Iterable[StudyRun]]], Study]:
    """Make a study of a function that gives its runs."""
    return lambda play: Study(name, title, columns, scales, play, **more)


def placed(rows: Mapping[str, Sequence[float]], columns: Iterable[str]) -> dict[Place, float]:
    """Return published rows as figures with their places; a row may be shorter than the columns."""
    heads = list(columns)
    return {(row, head): value for row, own in rows.items() for head, value in zip(heads, own, strict=False)}


def rhythm(scale: Scale, checkpoints: int = 1) -> dict[str, Any]:
    """Return how long a run is, and how often it is evaluated and saved."""
    every = max(1, scale.rounds // checkpoints)
    return {
        "rounds": scale.rounds,
        "evaluation": {"every": scale.every},
        "checkpoints": {"every": every, "keep": 1},
    }


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


def last_accuracy(run: Run, device: str = "") -> float:
    """Return the accuracy after the last round (see `pooled`)."""
    return list(pooled(run, device).values())[-1]


def mean_accuracy(run: Run) -> float:
    """Return the mean over clients after the last round, in per cent."""
    return 100 * float(run.summary["accuracy"]["mean"])


def stage_accuracy(run: Run, stage: str) -> float:
    """Return the same of a stage that comes before a client's own model is ready."""
    rows = [row for row in run.metrics if row["split"] == "test" and row["stage"] == stage]
    return 100 * fmean(row["accuracy"] for row in rows if row["round"] == rows[-1]["round"])


def reads_mean(*place: str) -> Reading:
    """Read the mean accuracy as the figure of one place."""
    row, column = place
    return lambda run: {(row, column): mean_accuracy(run)}
