"""The tables of a run: lines that are only added, and cut back to what a checkpoint says."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import IO, Any

from intarsia.core import CheckpointError, RunFolderError, naming
from intarsia.runs.manifests import TABLES

TIMES = "seconds"
"""The table that no result depends on: what is lost of it stays lost."""


class Tables:
    """The files `metrics.jsonl`, `traffic.jsonl`, ... of one run folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._files: dict[str, IO[bytes]] = {}

    @property
    def opened(self) -> bool:
        """Whether lines can be added."""
        return bool(self._files)

    def open(self) -> None:
        """Open all tables, to add to them."""
        self._files = {table: self.path(table).open("ab", buffering=0) for table in TABLES}

    def close(self) -> None:
        """Close all tables."""
        for file in self._files.values():
            file.close()
        self._files = {}

    def path(self, table: str) -> Path:
        """Return the file of a table."""
        return self.folder / f"{table}.jsonl"

    def append(self, tables: Mapping[str, Iterable[Mapping[str, Any]]]) -> None:
        """Add lines to tables."""
        for table, rows in tables.items():
            lines = memoryview(b"".join(json.dumps(row).encode() + b"\n" for row in rows))
            with naming(self.path(table)):
                while lines:
                    lines = lines[self._files[table].write(lines) :]

    def lengths(self) -> dict[str, int]:
        """Return how long each table is, in bytes."""
        return {name: file.tell() for name, file in self._files.items()}

    def rows(self, table: str) -> list[dict[str, Any]]:
        """Return all lines of a table."""
        path = self.path(table)
        lines = path.read_bytes().splitlines() if path.exists() else []
        return [read_object(f"{path}, line {number}", line) for number, line in enumerate(lines, 1)]

    def check(self, lengths: Mapping[str, int], source: Path) -> None:
        """Refuse tables that are shorter than they were when `source` was written."""
        for table, length in lengths.items():
            there = os.path.getsize(self.path(table))
            if there < length and table != TIMES:
                raise CheckpointError(
                    f"{self.path(table)} has {there} bytes, {source} says at least {length}: lines were lost"
                )

    def cut_back(self, lengths: Mapping[str, int]) -> None:
        """Cut tables to what they were; of a table that is shorter by now, the whole lines stay."""
        for table, length in lengths.items():
            file, path = self._files[table], self.path(table)
            if os.path.getsize(path) < length:
                length = path.read_bytes().rfind(b"\n") + 1
            file.truncate(length)
            file.seek(0, os.SEEK_END)


def read_object(where: str, text: bytes) -> dict[str, Any]:
    """Return an object written as JSON."""
    try:
        return dict(json.loads(text))
    except (ValueError, TypeError) as error:
        raise RunFolderError(f"{where} is damaged: put back a copy of it ({error})") from error
