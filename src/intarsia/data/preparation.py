"""What becomes of raw readings before a model sees them: filled, scaled, words as categories, windows.

A preparation is plain data, fitted on training rows alone. It is stored with a run, in `population.json`: the list
`preparations`, and for every client `preparation`, its number in that list (`preparations_of` reads them). Clients
whose inputs were given ready-made have none.

The arithmetic is that of `Preparation.apply`: float64 throughout, rounded to float32 once, at the end. An exported
model does the same: where(isnan(x), fill, x), then (x - offset) / scale, or x == 0, 1, 2, ... for words.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from intarsia.core import DataError
from intarsia.data import cells
from intarsia.data.population import Scaling
from intarsia.data.tables import Table

UNKNOWN = -1.0
"""The raw value of a word that training data did not have: no category, all zeros."""
DAY = 86400


@dataclass(frozen=True)
class Column:
    """One raw column of a client's table, and what becomes of it."""

    name: str
    kind: Literal["number", "words", "time"] = "number"
    fill: float | None = None
    """What stands for a missing value (None: a missing value is refused)."""
    carry: bool = False
    """Whether a missing value is the last one before it (`fill` where there is none)."""
    words: tuple[str, ...] = ()
    """Categories: the raw value is the number of the word here, and each is an input of its own, 0 or 1."""
    offset: float = 0.0
    scale: float = 1.0
    """A number or time becomes (x - offset) / scale."""
    form: str = ""
    """How times are written (`cells.FORMATS`)."""
    part: Literal["", "hour", "weekday"] = ""
    """Of a time: seconds since 1970, the hour of its day (0 ... 24), or its day of the week (Monday is 0); UTC."""

    @property
    def inputs(self) -> tuple[str, ...]:
        """The names of what the model sees of this column."""
        if self.kind == "words":
            return tuple(f"{self.name}={word}" for word in self.words)
        return (f"{self.name}.{self.part}" if self.part else self.name,)

    def raw(self, table: Table, *, trained: bool = False) -> NDArray[np.float64]:
        """Return a column of a table as raw values, row by row: NaN where a value is missing.

        `trained`: a model is there, and takes what it takes; else errors say which settings take other cells.
        """
        texts = table.column(self.name)
        if self.kind == "words":
            return self._numbered(texts)
        read = cells.numbers(texts) if self.kind == "number" else cells.times(texts, self.form)
        values, wrong = read
        if wrong:
            raise DataError(
                f"{table.place(wrong[0], self.name)}: {self._complaint(texts[wrong[0]], table, trained)}"
            )
        return _part_of(values, self.part)

    def _complaint(self, cell: str, table: Table, trained: bool) -> str:
        if self.kind == "time":
            return f"{cell!r} is no time as the others are (written {self.form}): put the cell right"
        if trained:
            cure = "empty the cell (a gap is filled)" if self.fill is not None else "leave the line out"
            return f"{cell!r} is no finite number, and the model takes numbers here: write one, or {cure}"
        return (
            f"{cell!r} is no finite number: put the cell right or empty it, leave the column out "
            f'(population.ignore = ["{self.name}"]) or take it as words (population.words = {{ "{self.name}" = [] }})'
            f"{_as_gap(cell, table)}"
        )

    def _numbered(self, texts: Sequence[str]) -> NDArray[np.float64]:
        place = {word: float(i) for i, word in enumerate(self.words)}
        known = (np.nan if cells.is_missing(text) else place.get(text, UNKNOWN) for text in texts)
        return np.fromiter(known, np.float64, len(texts))

    def apply(self, raw: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return what the model sees of raw values: the inputs of this column in a new last dimension."""
        values: NDArray[np.float64] = raw[..., None]
        if self.fill is not None:
            values = np.where(np.isnan(values), self.fill, values)
        elif np.isnan(values).any():
            raise DataError(f"column '{self.name}' has missing values: {HOW_TO_FILL}")
        if self.kind == "words":
            values = (values == np.arange(len(self.words))).astype(np.float64)
        else:
            values = (values - self.offset) / self.scale
        return values


def _as_gap(cell: str, table: Table) -> str:
    """Say how to take a word for a missing value, where it stands among the numbers of several columns."""
    said = f'; if it says that a value is missing: population.gaps = ["{cell}"], and population.missing'
    return said if cell.casefold() in cells.likely_gaps(table.columns) else ""


HOW_TO_FILL = 'set population.missing ("drop", "mean", "carry" or a number), or fill the cells'


@dataclass(frozen=True)
class Preparation:
    """How a client's raw columns become a model's inputs, and its outputs the columns to predict."""

    columns: tuple[Column, ...]
    window: int = 0
    """Rows of a sample, one after the other in time (0: one row is one sample)."""
    stride: int = 1
    """Rows between the beginnings of two windows."""
    targets: tuple[Column, ...] = ()
    """Numbers to predict: the model gives (y - offset) / scale of each. None where labels are predicted."""
    client: str = ""
    """The column that names the client of a row, where a table holds several."""
    time: str = ""
    """The column that says when: a client's rows go in its order."""
    time_form: str = ""
    """How it is written (`cells.FORMATS`)."""
    gaps: tuple[str, ...] = ()
    """Words of tables that say that a value is missing, beside the usual ones (`cells.MISSING`)."""

    @property
    def inputs(self) -> tuple[str, ...]:
        """The names of the model's inputs: the last dimension."""
        return tuple(name for column in self.columns for name in column.inputs)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of a sample as the model sees it."""
        return (self.window, len(self.inputs)) if self.window else (len(self.inputs),)

    def raw(self, table: Table) -> NDArray[np.float64]:
        """Return the raw values of a table, one client's rows in the order of time.

        (rows, columns), or (windows, window, columns); missing values are NaN where they are not carried on.
        """
        return self.windows(self.rows(table))

    def rows(self, table: Table) -> NDArray[np.float64]:
        """Return the raw values of a table row by row: carried on where that is asked for, not cut into windows."""
        table = table.emptied(self.gaps)
        missing = [column.name for column in self.columns if column.name not in table.columns]
        if missing:
            raise DataError(
                f"{table.source}: column '{missing[0]}' is missing, the model was trained with it: put it into the "
                f"file; there are: {', '.join(table.header)}"
            )
        found = [(column, column.raw(table, trained=True)) for column in self.columns]
        return np.stack([carried(raw) if column.carry else raw for column, raw in found], axis=1)

    def windows(self, rows: NDArray[Any]) -> NDArray[Any]:
        """Cut rows that follow one another into windows, if this has windows."""
        return rows[window_rows(len(rows), self.window, self.stride)] if self.window else rows

    def apply(self, raw: NDArray[np.float64]) -> NDArray[np.float32]:
        """Return the model's inputs for raw values: filled, scaled, words as categories."""
        parts = [column.apply(raw[..., i]) for i, column in enumerate(self.columns)]
        return np.concatenate(parts, axis=-1).astype(np.float32)

    def predicted(self, outputs: NDArray[Any]) -> NDArray[np.float64]:
        """Return what a regression's outputs stand for, in the units of the table."""
        scale = np.asarray([column.scale for column in self.targets])
        offset = np.asarray([column.offset for column in self.targets])
        found: NDArray[np.float64] = outputs.astype(np.float64) * scale + offset
        return found

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return {"kind": "columns", **asdict(self)}

    @property
    def ordered(self) -> bool:
        """Whether the order of rows counts: values are carried on, or a sample is a window."""
        return self.window > 0 or any(column.carry for column in self.columns)

    @classmethod
    def from_json(cls, about: Mapping[str, Any]) -> Preparation:
        """Read what `to_json` gave."""
        return cls(
            _columns(about["columns"]),
            about["window"],
            about["stride"],
            _columns(about.get("targets", ())),
            **{key: about.get(key, "") for key in ("client", "time", "time_form")},
            gaps=tuple(about.get("gaps", ())),
        )


@dataclass(frozen=True)
class Pictures:
    """How image files become a model's inputs: resized, grey or coloured, bytes scaled channel by channel."""

    height: int
    width: int
    channels: int
    scaling: Scaling

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of a sample as the model sees it."""
        return (self.channels, self.height, self.width)

    def raw(self, paths: Sequence[Path]) -> NDArray[np.uint8]:
        """Return image files as bytes: (images, channels, height, width), resized where they differ."""
        from intarsia.data.sources.readers import read_picture

        found = [read_picture(path, (self.height, self.width), self.channels) for path in paths]
        return np.stack(found).transpose(0, 3, 1, 2)

    def apply(self, raw: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Return the model's inputs for bytes, in float32 as training does: (x * factor - mean) / std."""
        mean, std = (
            np.asarray(values, np.float32)[:, None, None] for values in (self.scaling.mean, self.scaling.std)
        )
        return (raw.astype(np.float32) * np.float32(self.scaling.factor) - mean) / std

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return {"kind": "pictures", **asdict(self)}

    @classmethod
    def from_json(cls, about: Mapping[str, Any]) -> Pictures:
        """Read what `to_json` gave."""
        scaling = about["scaling"]
        return cls(
            about["height"],
            about["width"],
            about["channels"],
            Scaling(scaling["factor"], tuple(scaling["mean"]), tuple(scaling["std"])),
        )


Prepared = Preparation | Pictures
KINDS: dict[str, type[Preparation] | type[Pictures]] = {"columns": Preparation, "pictures": Pictures}


def units_of(prepared: Prepared | None) -> tuple[tuple[float, float], ...]:
    """Return offset and scale of each target; none where the model predicts targets in their own units."""
    targets = prepared.targets if isinstance(prepared, Preparation) else ()
    found = tuple((column.offset, column.scale) for column in targets)
    return found if any(own != (0.0, 1.0) for own in found) else ()


def preparations_of(about: Mapping[str, Any]) -> dict[str, Prepared]:
    """Return the preparation of each client that has one, from what a run folder's `population.json` says."""
    try:
        made = [KINDS[one["kind"]].from_json(one) for one in about.get("preparations", ())]
        return {
            name: made[client["preparation"]]
            for name, client in about.get("clients", {}).items()
            if "preparation" in client
        }
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        raise DataError(f"population.json is damaged: {type(error).__name__}: {error}") from error


def carried(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return values with every missing one replaced by the last before it, where there is one."""
    last = np.where(np.isnan(values), -1, np.arange(len(values)))
    place = np.maximum.accumulate(last) if len(values) else last
    return np.where(place < 0, np.nan, values[np.maximum(place, 0)])


def window_rows(count: int, window: int, stride: int) -> NDArray[np.int64]:
    """Return which of so many rows each window holds: (windows, window)."""
    starts = np.arange(0, max(0, count - window + 1), max(1, stride))
    return starts[:, None] + np.arange(window)


def _columns(about: Sequence[Mapping[str, Any]]) -> tuple[Column, ...]:
    return tuple(Column(**{**column, "words": tuple(column["words"])}) for column in about)


def _part_of(seconds: NDArray[np.float64], part: str) -> NDArray[np.float64]:
    days: NDArray[np.float64] = seconds / DAY
    if part == "hour":
        days = np.mod(seconds, DAY) / 3600
    elif part == "weekday":
        days = np.mod(np.floor(days) + 3, 7)  # 1970 began on a Thursday
    return days if part else seconds
