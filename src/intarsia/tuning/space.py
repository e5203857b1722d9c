"""What is searched: lists and ranges of values by setting, and the points that are taken from them."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from intarsia.core import SettingsError, chance
from intarsia.experiment import parse_value

Point = dict[str, Any]
"""A value for each setting that is searched, by dotted name."""

SCALES = ("lin", "log")
DIGITS = 4
"""Significant digits of a number that is drawn from a range: enough, and readable."""
PATIENCE = 1000
"""Draws for a point that is asked for, so that a space with too few points ends the drawing."""
NEAR = 0.05
"""A value in this share of a range, at either end, counts as lying on its edge."""


@dataclass(frozen=True)
class Choices:
    """The values of a grid, in order."""

    values: tuple[Any, ...]

    @property
    def count(self) -> int:
        """How many values there are."""
        return len(self.values)

    def draw(self, chances: np.random.Generator) -> Any:
        """Return one of the values."""
        return self.values[int(chances.integers(self.count))]

    def edge(self, best: Any) -> str:
        """Say on which edge of a numeric grid a value lies; a smallest value of 0 is no edge."""
        if self.count < 2 or not all(map(_is_number, self.values)):
            return ""
        if best == max(self.values):
            return "is the largest of the grid"
        return "is the smallest of the grid" if best == min(self.values) != 0 else ""


@dataclass(frozen=True)
class Range:
    """Numbers from low to high, even on a linear or logarithmic scale; whole ones if both ends are whole."""

    low: float
    high: float
    scale: str = "lin"

    def __post_init__(self) -> None:
        if not _is_number(self.low) or not _is_number(self.high) or not self.low < self.high:
            raise SettingsError(f"a range goes from a number up to a larger one, not {self.low}:{self.high}")
        if self.scale not in SCALES:
            raise SettingsError(f"a range is lin or log, not '{self.scale}'")
        if self.scale == "log" and self.low <= 0:
            raise SettingsError(f"a log range starts above 0, not at {self.low}")

    @property
    def whole(self) -> bool:
        """Whether only whole numbers are meant."""
        return isinstance(self.low, int) and isinstance(self.high, int)

    @property
    def count(self) -> float:
        """How many values there are."""
        return self.high - self.low + 1 if self.whole else math.inf

    def draw(self, chances: np.random.Generator) -> float:
        """Return a number; every whole number has its share of half a unit to either side."""
        margin = 0.5 if self.whole else 0.0
        ends = self._scaled(self.low - margin), self._scaled(self.high + margin)
        drawn = float(chances.uniform(*ends))
        number = math.exp(drawn) if self.scale == "log" else drawn
        rounded = round(number) if self.whole else float(f"{number:.{DIGITS}g}")
        inside = min(max(rounded, self.low), self.high)
        return inside if self.whole else float(inside)

    def edge(self, best: float) -> str:
        """Say at which end of the range a value lies; an end of 0 is none."""
        low, high = self._scaled(self.low), self._scaled(self.high)
        place = (self._scaled(best) - low) / (high - low)
        where = f"of the range {self.low:g}:{self.high:g}"
        if place >= 1 - NEAR:
            return f"lies at the upper end {where}"
        return f"lies at the lower end {where}" if place <= NEAR and self.low != 0 else ""

    def _scaled(self, number: float) -> float:
        return math.log(number) if self.scale == "log" else float(number)


@dataclass(frozen=True)
class Space:
    """All that is searched; with `random`, that many points of it are drawn, else all are taken."""

    axes: Mapping[str, Choices | Range]
    random: int | None = None

    @classmethod
    def of(
        cls,
        grid: Mapping[str, Iterable[Any]],
        ranges: Mapping[str, Range | tuple[Any, ...]],
        random: int | None = None,
    ) -> Space:
        """Make a space of lists of values and of ranges (low, high, "lin" or "log"), by setting."""
        for name, given in (("grid", grid), ("ranges", ranges)):
            if not isinstance(given, Mapping) or not all(isinstance(key, str) for key in given):
                raise SettingsError(
                    f'{name}: give a dict by setting, as {{"training.lr": ...}}, not {given!r}'
                )
        if not isinstance(random, int | None):
            raise SettingsError(f"random: give a whole number of points, not {random!r}")
        twice = sorted(grid.keys() & ranges.keys())
        if twice:
            raise SettingsError(f"{twice[0]}: give a grid or a range, not both")
        lists = {key: _choices(key, values) for key, values in grid.items()}
        space = cls({**lists, **{key: _range(key, value) for key, value in ranges.items()}}, random)
        space._check(ranges)
        return space

    def points(self, seed: int) -> list[Point]:
        """Return the points in order, no two alike."""
        if self.random is None:
            lists = [axis.values for axis in self.axes.values() if isinstance(axis, Choices)]
            return [dict(zip(self.axes, values, strict=True)) for values in product(*lists)]
        wanted = min(self.random, math.prod(axis.count for axis in self.axes.values()))
        found: dict[str, Point] = {}
        for number in range(PATIENCE * self.random):
            if len(found) == wanted:
                break
            point = self._draw(seed, number)
            found.setdefault(json.dumps(point), point)
        return list(found.values())

    def edges(self, best: Point) -> list[str]:
        """Say which values of the best point lie on the edge of what was searched."""
        told = {key: axis.edge(best[key]) for key, axis in self.axes.items()}
        return [
            f"{key}: the best value, {text_of(best[key])}, {edge}: search beyond it too"
            for key, edge in told.items()
            if edge
        ]

    def to_json(self) -> dict[str, Any]:
        """Return the space as plain values."""
        axes = self.axes.items()
        return {
            "grid": {key: list(axis.values) for key, axis in axes if isinstance(axis, Choices)},
            "ranges": {
                key: {"low": axis.low, "high": axis.high, "scale": axis.scale}
                for key, axis in axes
                if isinstance(axis, Range)
            },
            "random": self.random,
        }

    def _draw(self, seed: int, number: int) -> Point:
        return {
            key: axis.draw(chance.numpy_generator(seed, "tune", number, key))
            for key, axis in self.axes.items()
        }

    def _check(self, ranges: Iterable[str]) -> None:
        if not self.axes:
            raise SettingsError(
                "there is nothing to search: name values, for example --grid training.lr=0.01,0.1"
            )
        for key in self.axes:
            if key == "seed":
                raise SettingsError("seed is not tuned: every point runs with all seeds (--seeds N)")
            if not all(key.split(".")):
                raise SettingsError(f"'{key}' is no setting: write a.b, for example training.lr")
        if self.random is None and list(ranges):
            raise SettingsError(f"{next(iter(ranges))}: a range needs a number of points: --random N")
        if self.random is not None and self.random < 1:
            raise SettingsError(f"--random draws at least one point, not {self.random}")


def parse_grid(texts: Iterable[str]) -> dict[str, list[Any]]:
    """Read grids as the command line has them: `training.lr=0.01,0.1`."""
    pairs = (_pair(text, "training.lr=0.01,0.1") for text in texts)
    return _once((key, [_value(key, value) for value in split_values(values)]) for key, values in pairs)


def parse_ranges(texts: Iterable[str]) -> dict[str, Range]:
    """Read ranges as the command line has them: `training.lr=0.001:1:log`."""
    pairs = (_pair(text, "training.lr=0.001:1:log") for text in texts)
    return _once((key, _range(key, tuple(map(parse_value, value.split(":"))))) for key, value in pairs)


def split_values(text: str) -> list[str]:
    """Split at commas, but not at those in brackets or quotes."""
    values, depth, quote = [""], 0, ""
    for letter in text:
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "\"'":
            quote = letter
        else:
            depth += (letter in "[{") - (letter in "]}")
        if letter == "," and depth == 0 and not quote:
            values.append("")
        else:
            values[-1] += letter
    return [value.strip() for value in values]


def text_of(value: Any) -> str:
    """Return a value as people read it."""
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{key}={text_of(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ",".join(map(text_of, value)) + "]"
    return str(value).lower() if isinstance(value, bool) else str(value)


def name_of(point: Point) -> str:
    """Return a point as people read it, with the last word of each setting where that is clear."""
    short = [key.rpartition(".")[2] for key in point]
    names = short if len(set(short)) == len(short) else list(point)
    return " ".join(f"{name}={text_of(value)}" for name, value in zip(names, point.values(), strict=True))


def _pair(text: str, example: str) -> tuple[str, str]:
    key, sign, values = text.partition("=")
    if not sign or not key.strip() or not values.strip():
        raise SettingsError(f"'{text}' says no values: write, for example, {example}")
    return key.strip(), values


def _value(key: str, text: str) -> Any:
    if not text:
        raise SettingsError(f'{key}: a value is missing between two commas; an empty text is written ""')
    return parse_value(text)


def _once(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise SettingsError(f"{key} is given twice: put its values into one list")
        found[key] = value
    return found


def _choices(key: str, values: Iterable[Any]) -> Choices:
    if isinstance(values, (str, Mapping)) or not isinstance(values, Iterable):
        raise SettingsError(f"{key}: give a list of values, not {values!r}")
    plain = [_plain(key, value) for value in values]
    if not plain:
        raise SettingsError(f"{key}: there is no value in the grid")
    for number, value in enumerate(plain):
        if value in plain[:number]:
            raise SettingsError(f"{key}: {text_of(value)} is in the grid twice")
    return Choices(tuple(plain))


def _range(key: str, value: Range | tuple[Any, ...]) -> Range:
    if isinstance(value, Range):
        return value
    if not isinstance(value, (tuple, list)) or len(value) not in (2, 3):
        raise SettingsError(f"{key}: a range is low:high, or low:high:log")
    try:
        return Range(*(_plain(key, part) for part in value))
    except SettingsError as error:
        raise SettingsError(f"{key}: {error}") from None


def _plain(key: str, value: Any) -> Any:
    """Return a value as settings hold it: arrays and tuples as lists, numpy's numbers as Python's."""
    try:
        return json.loads(json.dumps(value, default=lambda other: other.tolist()))
    except (TypeError, ValueError, AttributeError):
        raise SettingsError(
            f"{key}: {value!r} is no plain value (number, text, true or false, list, table)"
        ) from None


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
