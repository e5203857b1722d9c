"""Tables of one's own: .csv, .tsv and .parquet files as columns of texts, whatever their dialect."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from intarsia.core import DataError, warn
from intarsia.data.cells import THOUSANDS, Decimal, number

TABLES = (".csv", ".tsv", ".parquet")
DELIMITERS = (",", ";", "\t", "|")
COMMA_NUMBER = re.compile(r"[+-]?\d+,\d+")
POINT_NUMBER = re.compile(r"[+-]?\d+\.\d+")


@dataclass(frozen=True)
class Table:
    """The cells of a table, column by column, with the line that each row stands in; decimals have a point."""

    source: str
    columns: Mapping[str, Sequence[str]]
    lines: Sequence[int]
    sources: Sequence[str] = ()
    """The file of each row, where rows come from several."""
    dropped: tuple[str, ...] = ()
    """Columns without a name that merely count the rows: they are left out."""

    def __len__(self) -> int:
        return len(self.lines)

    @property
    def header(self) -> list[str]:
        """The names of the columns."""
        return list(self.columns)

    def column(self, name: str) -> Sequence[str]:
        """Return the cells of a column; errors say which columns there are."""
        if name not in self.columns:
            raise DataError(f"{self.source}: there is no column '{name}'; {in_words(self.header)}")
        return self.columns[name]

    def rows(self, kept: Sequence[int] | NDArray[np.int64]) -> Table:
        """Return some of the rows, in this order."""
        picked = [int(i) for i in kept]
        columns = {name: [cells[i] for i in picked] for name, cells in self.columns.items()}
        sources = [self.sources[i] for i in picked] if self.sources else ()
        return replace(self, columns=columns, lines=[self.lines[i] for i in picked], sources=sources)

    def emptied(self, gaps: Sequence[str]) -> Table:
        """Return the table with cells empty that say one of these words."""
        words = {word.strip().casefold() for word in gaps}
        if not words:
            return self
        empty = {
            name: ["" if cell.casefold() in words else cell for cell in cells]
            for name, cells in self.columns.items()
        }
        return replace(self, columns=empty)

    def line(self, row: int) -> str:
        """Say where a row stands."""
        return f"{self.sources[row] if self.sources else self.source}, line {self.lines[row]}"

    def place(self, row: int, column: str) -> str:
        """Say where a cell stands."""
        return f"{self.line(row)}, column '{column}'"


def joined(tables: Sequence[Table]) -> Table:
    """Return the rows of several tables as one; where one lacks a column, its cells are empty."""
    if len(tables) == 1:
        return tables[0]
    header = dict.fromkeys(name for table in tables for name in table.columns)
    columns = {
        name: [cell for table in tables for cell in table.columns.get(name, [""] * len(table))]
        for name in header
    }
    lines = [line for table in tables for line in table.lines]
    sources = [table.source for table in tables for _ in table.lines]
    return Table(tables[0].source, columns, lines, sources)


def in_words(names: Sequence[str]) -> str:
    """Say which names there are."""
    return f"there are: {', '.join(names)}"


def read_table(path: Path, decimal: Literal["auto", ".", ","] = "auto", gaps: Sequence[str] = ()) -> Table:
    """Read a table: its encoding, what separates its cells and how it writes decimals are found.

    Cells that say one of `gaps` (whatever the case) are empty.
    """
    return _parquet(path).emptied(gaps) if path.suffix.lower() == ".parquet" else _csv(path, decimal, gaps)


def _csv(path: Path, decimal: Literal["auto", ".", ","], gaps: Sequence[str]) -> Table:
    text = _text(path)
    if not text.strip():
        raise _empty(path)
    delimiter = _delimiter(text)
    try:
        reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, skipinitialspace=True)
        lines = [(reader.line_num, row) for row in reader if any(cell.strip() for cell in row)]
    except csv.Error as error:
        raise DataError(
            f"{path} cannot be read: {error}; save it as .csv with one kind of separator"
        ) from error
    if not lines:
        raise _empty(path)
    header, body = _header(path, lines)
    columns = {name: [row[i].strip() for _, row in body] for i, name in enumerate(header)}
    columns, dropped = _without_count(path, columns)
    if (_decimal(columns, delimiter) if decimal == "auto" else decimal) == ",":
        columns = {name: [_with_point(cell) for cell in cells] for name, cells in columns.items()}
    return Table(str(path), columns, [line for line, _ in body], dropped=dropped).emptied(gaps)


def _empty(path: Path) -> DataError:
    return DataError(f"{path} is empty: give it a header and rows, or take it away")


def _text(path: Path) -> str:
    """Return a file's text: UTF-8 with or without a mark, UTF-16 with one, else as Windows writes it."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from error
    if b"\0" in data[:4096] and not data.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise DataError(f"{path} cannot be read: it is no text; save the table as .csv or .parquet")
    if not data.strip():
        raise _empty(path)
    for encoding in ("utf-16",) if data.startswith((b"\xff\xfe", b"\xfe\xff")) else ("utf-8-sig", "cp1252"):
        try:
            return data.decode(encoding)
        except UnicodeDecodeError:
            continue
    return data.decode("latin-1")


def _delimiter(text: str) -> str:
    """Return what separates the cells: what the header has most of, outside of quotes."""
    first = next(line for line in text.splitlines() if line.strip())
    bare = re.sub(r'"[^"]*"', "", first)
    return max(DELIMITERS, key=bare.count)


def _header(
    path: Path, lines: Sequence[tuple[int, list[str]]]
) -> tuple[list[str], Sequence[tuple[int, list[str]]]]:
    """Return the names of the columns, and the rows below, after checking both."""
    header = [column.strip() for column in lines[0][1]]
    body = lines[1:]
    if len(header) > 1 and all(POINT_NUMBER.fullmatch(c) or c.lstrip("+-").isdigit() for c in header):
        raise DataError(
            f"{path} has numbers where the names of its columns should be ({', '.join(header[:4])}): "
            "write a first line with a name for each column"
        )
    while (
        header and not header[-1] and all(not cell.strip() for _, r in body for cell in r[len(header) - 1 :])
    ):
        header = header[:-1]
        body = [(line, row[: len(header)]) for line, row in body]
    body = _without_headers(path, header, body)
    if not body:
        raise DataError(f"{path} has no rows below its header: add rows, or take the file away")
    twice = [column for column in header if header.count(column) > 1]
    if twice:
        raise DataError(f"{path} has two columns '{twice[0]}': rename or delete one of them")
    for line, row in body:
        if len(row) != len(header):
            raise DataError(
                f"{path}, line {line}: {len(row)} cells, the header has {len(header)}: "
                "put right the line (a cell with a separator in it must stand in quotes)"
            )
    return header, body


def _without_headers(
    path: Path, header: Sequence[str], body: Sequence[tuple[int, list[str]]]
) -> Sequence[tuple[int, list[str]]]:
    """Leave out lines that repeat the header, as files have that were put one below the other, and say so."""
    repeated = [line for line, row in body if [cell.strip() for cell in row] == header]
    if not repeated:
        return body
    more = f" (as lines do {len(repeated)} times in all)" if len(repeated) > 1 else ""
    warn(
        f"{path}, line {repeated[0]} repeats the header{more}: skipped; remove it, or give the files one by one "
        "(path = [...])"
    )
    return [(line, row) for line, row in body if line not in set(repeated)]


def _without_count(path: Path, columns: dict[str, list[str]]) -> tuple[dict[str, list[str]], tuple[str, ...]]:
    """Leave out a column without a name that counts the rows, as pandas writes one; refuse another without a name."""
    for name in ("", "Unnamed: 0"):
        cells = columns.get(name)
        if cells is None:
            continue
        if all(cell.isdigit() for cell in cells) and len(set(cells)) == len(cells):
            return {key: value for key, value in columns.items() if key != name}, (name or "(no name)",)
        if not name:
            raise DataError(f"{path}: a column has no name: write one above it in the first line")
    return columns, ()


def _decimal(columns: Mapping[str, Sequence[str]], delimiter: str) -> Decimal:
    """Return how decimals are written: with a comma where cells like 1,5 are there and none like 1.5."""
    comma = thousands = False
    for cells in columns.values():
        for cell in cells:
            if POINT_NUMBER.fullmatch(cell) and not THOUSANDS[","].fullmatch(cell):
                return "."
            if "." in cell and "," in cell and THOUSANDS[","].fullmatch(cell):
                return ","
            if COMMA_NUMBER.fullmatch(cell):
                thousands = thousands or THOUSANDS["."].fullmatch(cell) is not None
                comma = comma or THOUSANDS["."].fullmatch(cell) is None
    return "," if comma or (thousands and delimiter == ";") else "."


def _parquet(path: Path) -> Table:
    try:
        import pyarrow.parquet
    except ImportError:
        raise DataError(f"{path}: to read .parquet files, pip install 'intarsia[parquet]'") from None
    try:
        columns = pyarrow.parquet.read_table(path).to_pydict()
    except Exception as error:  # a damaged file can raise anything
        raise DataError(f"{path} cannot be read: {error}; write it anew, or as .csv") from error
    texts = {
        name: ["" if cell is None else str(cell).strip() for cell in cells] for name, cells in columns.items()
    }
    count = max((len(cells) for cells in texts.values()), default=0)
    if not count:
        raise DataError(f"{path} has no rows: add rows, or take the file away")
    return Table(str(path), texts, range(1, count + 1))


def _with_point(cell: str) -> str:
    """Return a cell with a decimal comma as Python writes it; any other as it is."""
    value = number(cell, ",") if "," in cell or THOUSANDS[","].fullmatch(cell) else None
    return cell if value is None else repr(value)
