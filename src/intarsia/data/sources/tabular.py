"""Which columns of own tables are what: clients, targets, times and features; rows by client."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from intarsia.core import DataError, part, suggest
from intarsia.data.cells import FORMATS, forms_of_time, is_missing, numbers, times
from intarsia.data.population import SPLITS, PopulationSource, Problem
from intarsia.data.preparation import Column
from intarsia.data.sources.devices import found_devices, warn_of_headers
from intarsia.data.sources.doubts import warn_of_clients, warn_of_columns
from intarsia.data.sources.readers import ABOUT, Holding, attribute_of, label_of
from intarsia.data.tables import Table, in_words, joined, read_table

MOST_WORDS = 100
"""A column with more different words than this is hardly a category."""
TimePart = Literal["seconds", "hour", "weekday"]


@part
class Tabular(PopulationSource):
    """How tables are read."""

    path: str | tuple[str, ...]
    """A file, a folder or several files."""
    target: str = "label"
    """The column to predict (several for regression: separated by commas)."""
    client: str = "client"
    """The column that names the client, in one table for all."""
    split: str = "split"
    """The column that says train, validation or test, where there is one."""
    features: tuple[str, ...] = ()
    """The columns to learn from (none: all without another role)."""
    ignore: tuple[str, ...] = ()
    """Columns that are left out."""
    words: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    """Columns that are categories, though they look like numbers: which, in order (none: those of training rows)."""
    time: str = ""
    """The column that says when; rows go in its order."""
    time_form: str = ""
    """How times are written, where that is not clear: iso, seconds, or as Python's strptime has it (%d/%m/%Y)."""
    time_parts: tuple[TimePart, ...] = ()
    """What is learned from the time: seconds, hour (of the day), weekday."""
    relabel: dict[str, str] = Field(default_factory=dict)
    """Other names for labels: the same thing written in two ways."""
    decimal: Literal["auto", ".", ","] = "auto"
    """What stands before decimals."""
    problem: Problem = "classification"
    """Whether targets are labels or numbers."""
    missing: Literal["refuse", "drop", "mean", "carry"] | float = "refuse"
    """What is done about missing values: refuse, drop the row, take the mean of training rows, carry on the last value
    before it, or take this number. Words that are missing are no category."""
    gaps: tuple[str, ...] = ()
    """Other words that say that a value is missing (beside an empty cell, NA, n/a, -, ? and the like)."""
    unlabelled: Literal["refuse", "drop"] = "refuse"
    """What is done about rows without a label or target."""
    min_rows: Annotated[int, Field(ge=0)] = 0
    """Clients with fewer rows are left out."""

    @property
    def paths(self) -> list[Path]:
        """The files or folders that are read."""
        found = [Path(self.path)] if isinstance(self.path, str) else [Path(path) for path in self.path]
        for path in found:
            if not path.exists():
                raise DataError(
                    f"population.path: {path} does not exist: put right the path (it leads from the file "
                    "that names it)"
                )
        return found

    @property
    def targets(self) -> list[str]:
        """The columns to predict."""
        return [column.strip() for column in self.target.split(",")]

    def of_tables(self, paths: Sequence[Path]) -> dict[str, Holding]:
        """Read tables: every client's rows."""
        if not paths:
            return {}
        tables = self.by_client([read_table(path, self.decimal, self.gaps) for path in paths], paths)
        tables = {name: table for name, table in tables.items() if len(table) >= self.min_rows}
        if not tables:
            raise DataError(f"population.min_rows: no client has {self.min_rows} rows: lower it")
        form = self._form_of_time(tables)
        seconds = {name: self._seconds(table, form) for name, table in tables.items()}
        if self.time:
            orders = {
                name: np.argsort(own, kind="stable") for name, own in seconds.items() if own is not None
            }
            tables = {name: table.rows(orders[name]) for name, table in tables.items()}
            seconds = {name: np.sort(own) for name, own in seconds.items() if own is not None}
        about = {name: self._about(table) for name, table in tables.items()}
        columns = self._columns(tables, about, form)
        for name, device in found_devices(columns, about).items():
            about[name]["device"] = device
        found = {
            name: replace(self._holding(table, about[name], columns[name], seconds[name]), time_form=form)
            for name, table in tables.items()
        }
        if self.missing == "refuse":
            _refuse_missing(list(found.values()))
        return found

    def by_client(self, tables: Sequence[Table], paths: Sequence[Path]) -> dict[str, Table]:
        """Return each client's rows: by the column that names the client, or one file a client."""
        single = len(paths) == 1 and isinstance(self.path, str) and Path(self.path).is_file()
        if not single and not all(self.client in table.columns for table in tables):
            names = [path.stem for path in paths]
            twice = [name for name in names if names.count(name) > 1]
            if twice:
                raise DataError(
                    f"{paths[0].parent} has two files for client '{twice[0]}': rename or remove one"
                )
            return dict(zip(names, tables, strict=True))
        found: dict[str, list[Table]] = {}
        for table in tables:
            for name, rows in self._rows_of_clients(table).items():
                found.setdefault(name, []).append(table.rows(rows))
        return {name: joined(own) for name, own in found.items()}

    def _rows_of_clients(self, table: Table) -> dict[str, list[int]]:
        if self.client not in table.columns:
            close = suggest(self.client, table.header) if table.header else ""
            raise DataError(
                f"{table.source}: there is no column '{self.client}' that names the client; {in_words(table.header)}: "
                f"set population.client to one of them, or give a folder with a file a client{_meant(close)}"
            )
        rows: dict[str, list[int]] = {}
        for i, name in enumerate(table.columns[self.client]):
            if not name:
                raise DataError(f"{table.line(i)}: the client is missing: name it, or delete the row")
            rows.setdefault(name, []).append(i)
        return rows

    def _about(self, table: Table) -> dict[str, Any]:
        """Return what columns say of a client: one thing in all of its rows."""
        found = {}
        for key in ABOUT:
            if key not in table.columns or key in (*self.ignore, *self.features, *self.targets, self.client):
                continue
            said = {
                cell: i for i, cell in reversed(list(enumerate(table.columns[key]))) if not is_missing(cell)
            }
            if len(said) > 1:
                one, other = sorted(said, key=said.__getitem__)[:2]
                raise DataError(
                    f"{table.place(said[other], key)}: '{other}' differs from '{one}' above it; a client has one "
                    f'{key}: put it right, or leave the column out (population.ignore = ["{key}"])'
                )
            for cell, i in said.items():
                found[key] = attribute_of(table.line(i), key, cell)
        return found

    def _form_of_time(self, tables: Mapping[str, Table]) -> str:
        """Return how all times are written."""
        if not self.time:
            if self.time_parts:
                raise DataError("population.time_parts: say which column holds the time (population.time)")
            return ""
        if self.time_form:
            if self.time_form not in FORMATS and "%" not in self.time_form:
                raise DataError(
                    f"population.time_form: '{self.time_form}' is no form: write iso, seconds, or for example %d/%m/%Y"
                )
            return self.time_form
        cells = list(dict.fromkeys(c for table in tables.values() for c in table.column(self.time)))
        return self._one_form(tables, cells)

    def _one_form(self, tables: Mapping[str, Table], cells: Sequence[str]) -> str:
        forms = forms_of_time(cells)
        if len(forms) > 1:
            example = next(cell for cell in cells if not is_missing(cell))
            raise DataError(
                f"population.time: '{example}' in column '{self.time}' can be read in two ways: set "
                f'population.time_form = "{forms[0]}" or "{forms[1]}"'
            )
        if forms:
            return forms[0]
        first = forms_of_time(cells[:1])
        for table in tables.values():
            texts = table.column(self.time)
            wrong = times(texts, first[0])[1] if first else [0]
            if wrong:
                raise DataError(
                    f"{table.place(wrong[0], self.time)}: '{texts[wrong[0]]}' is no time, or written in another way "
                    "than those before it: write all times in one way, best as 2024-12-31 23:59:59"
                )
        raise DataError(
            f"population.time: column '{self.time}' holds no times: put it right, or leave it out"
        )

    def _seconds(self, table: Table, form: str) -> NDArray[np.float64] | None:
        if not self.time:
            return None
        found = Column(self.time, "time", form=form).raw(table)
        if np.isnan(found).any():
            where = table.place(int(np.flatnonzero(np.isnan(found))[0]), self.time)
            raise DataError(f"{where}: the time is missing: put it right, or delete the row")
        return found

    def _columns(
        self, tables: Mapping[str, Table], about: Mapping[str, Mapping[str, Any]], form: str
    ) -> dict[str, tuple[Column, ...]]:
        """Return each client's columns: those that its device has; which those are, the cells say."""
        names = self._features(tables)
        warn_of_headers(tables, names)
        warn_of_clients(tables)
        warn_of_columns(tables, [] if self.features else names, self.targets)
        there = {
            client: {n for n in names if not all(map(is_missing, table.columns.get(n, ())))}
            for client, table in tables.items()
        }
        device = {client: about[client].get("device") for client in tables}
        of_device: dict[Any, set[str]] = {}
        for client, own in there.items():
            of_device.setdefault(device[client], set()).update(own)
        kinds = {
            name: self._kind(name, tables) for name in names if any(name in own for own in there.values())
        }
        self._check_there(kinds, names)
        held = {c: there[c] if device[c] is None else of_device[device[c]] for c in tables}
        times = tuple(
            Column(self.time, "time", form=form, part="" if part == "seconds" else part)
            for part in self.time_parts
        )
        found = {c: tuple(kinds[n] for n in names if n in own) + times for c, own in held.items()}
        for client, columns in found.items():
            if not columns:
                raise DataError(
                    f"{tables[client].source}: client '{client}' has no value in any column to learn from; "
                    f"{in_words(tables[client].header)}: give it some, or set population.features"
                )
        return found

    def _features(self, tables: Mapping[str, Table]) -> list[str]:
        """Return the columns to learn from, of all tables."""
        header = dict.fromkeys(name for table in tables.values() for name in table.columns)
        for table in tables.values():
            for name in self.targets:
                if name not in table.columns:
                    raise DataError(
                        f"{table.source}: there is no column '{name}' to predict; {in_words(table.header)}: set "
                        "population.target to one of them"
                    )
        for setting, named in (
            ("features", self.features),
            ("ignore", self.ignore),
            ("words", tuple(self.words)),
        ):
            unknown = [name for name in named if name not in header]
            if unknown:
                raise DataError(
                    f"population.{setting}: there is no column '{unknown[0]}'{suggest(unknown[0], header)}"
                )
        both = {*self.features, *self.words} & set(self.targets)
        if both:
            raise DataError(f"population.features: '{min(both)}' is what is to be predicted: take it out")
        roles = {self.client, self.split, self.time, *self.targets, *ABOUT, *self.ignore}
        return list(self.features) or [name for name in header if name not in roles]

    def _check_there(self, kinds: Mapping[str, Column], names: Sequence[str]) -> None:
        empty = [name for name in self.features if name not in kinds]
        if empty:
            raise DataError(f"population.features: column '{empty[0]}' is empty in every row: take it out")
        if not names and not self.time_parts:
            raise DataError(
                "there is no column to learn from: set population.features, or take less into ignore"
            )

    def _kind(self, name: str, tables: Mapping[str, Table]) -> Column:
        """Return a column as what its cells are: numbers, or words."""
        if name in self.words:
            return Column(name, "words", words=self.words[name])
        if name == self.time:
            return Column(name, "time", form=self._form_of_time(tables))
        cells = list(dict.fromkeys(cell for table in tables.values() for cell in table.columns.get(name, ())))
        values, wrong = numbers(cells)
        if len(wrong) == 0 or not np.isnan(values).all():
            return Column(name)  # a word among numbers is refused when the column is read
        if forms_of_time(cells):
            raise DataError(
                f"column '{name}' holds times, such as '{cells[wrong[0]]}': set population.time = \"{name}\" (and "
                f'population.time_parts to learn from it), or leave it out (population.ignore = ["{name}"])'
            )
        if len(wrong) > MOST_WORDS:
            raise DataError(
                f"column '{name}' holds {len(wrong)} different words, such as '{cells[wrong[0]]}': too many for "
                f'categories; leave it out (population.ignore = ["{name}"]), or name those that count '
                f'(population.words = {{ "{name}" = [...] }})'
            )
        return Column(name, "words")

    def _holding(
        self,
        table: Table,
        about: dict[str, Any],
        columns: tuple[Column, ...],
        seconds: NDArray[np.float64] | None,
    ) -> Holding:
        x = np.stack([self._raw(column, table) for column in columns], axis=1)
        y, there = self._y(table)
        split = [self._split_of(table, i) for i in range(len(table))]
        found = Holding(x, y, split, about, columns, table, seconds)
        if self.missing == "drop":
            there &= ~np.isnan(x).any(1)
        return found if there.all() else found.rows(np.flatnonzero(there))

    def _raw(self, column: Column, table: Table) -> NDArray[np.float64]:
        """Return raw values of a column; a column that this table lacks is missing. Words are numbered later."""
        if column.name not in table.columns or column.kind == "words":
            cells = table.columns.get(column.name, [""] * len(table))
            return np.asarray([np.nan if is_missing(cell) else 0.0 for cell in cells])
        return column.raw(table)

    def _y(self, table: Table) -> tuple[list[Any], NDArray[np.bool_]]:
        """Return targets, and which rows have one; rows without are refused, unless they are to be dropped."""
        texts = [table.column(name) for name in self.targets]
        there = np.asarray([not any(map(is_missing, row)) for row in zip(*texts, strict=True)])
        if not there.all() and "drop" not in (self.missing, self.unlabelled):
            row = int(np.flatnonzero(~there)[0])
            name = next(n for n, own in zip(self.targets, texts, strict=True) if is_missing(own[row]))
            what = "label" if self.problem == "classification" else "target"
            raise DataError(
                f"{table.place(row, name)}: the {what} is missing: "
                'write it, delete the row, or set population.unlabelled = "drop"'
            )
        if self.problem == "regression":
            numbers = np.stack([Column(name).raw(table) for name in self.targets], axis=1)
            return numbers.tolist(), there
        return [label_of(cell) for cell in texts[0]], there

    def _split_of(self, table: Table, row: int) -> str:
        cell = table.columns[self.split][row] if self.split in table.columns else ""
        if cell and cell.lower() not in SPLITS:
            raise DataError(
                f"{table.line(row)}: '{cell}' is no split; write {', '.join(SPLITS)}, or set population.split to "
                "another column"
            )
        return cell.lower()


def files_in(path: Path, endings: Sequence[str]) -> list[Path]:
    """Return the files with such an ending that a path names: itself, or those in the folder."""
    return [p for p in (sorted(path.iterdir()) if path.is_dir() else [path]) if p.suffix.lower() in endings]


def with_words(column: Column, holdings: Sequence[tuple[Holding, NDArray[np.int64]]]) -> Column:
    """Return a column of words with its categories: those that training rows have, in alphabetical order."""
    if column.kind != "words" or column.words:
        return column
    found: set[str] = set()
    for holding, rows in holdings:
        assert holding.table is not None
        cells = holding.table.columns.get(column.name, ())
        found |= {cells[i] for i in rows if cells and not is_missing(cells[i])}
    return replace(column, words=tuple(sorted(found)))


def _refuse_missing(holdings: Sequence[Holding]) -> None:
    """Refuse the first column in which a value is missing; all clients' rows are counted."""
    gaps: dict[str, list[tuple[Table, int]]] = {}
    for holding in holdings:
        assert holding.table is not None
        for i, column in enumerate(holding.columns):
            rows = np.flatnonzero(np.isnan(holding.x[:, i]))
            gaps.setdefault(column.name, []).extend((holding.table, int(row)) for row in rows)
    for name, places in gaps.items():
        if places:
            table, row = min(places, key=lambda place: place[0].lines[place[1]])
            more = f" (and in {_more_rows(len(places) - 1)} of the table)" if len(places) > 1 else ""
            raise DataError(
                f"{table.place(row, name)}: a value is missing{more}: set population.missing "
                f'("drop", "mean", "carry" or a number), fill the cell, or population.ignore = ["{name}"]'
            )


def _more_rows(count: int) -> str:
    return f"{count} more rows" if count > 1 else "1 more row"


def _meant(close: str) -> str:
    return close if "did you mean" in close else ""
