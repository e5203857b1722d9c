"""The tables of a run: lines that are only added, and cut back to what a checkpoint says."""

from __future__ import annotations

import gzip
import json
import os
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import IO, Any

from intarsia.core import CheckpointError, RunFolderError, naming, sync_folder, write_atomically

TABLES = ("metrics", "traffic", "events", "judged", "groups", "notes", "seconds")
TIMES = "seconds"
"""The table that no result depends on: what is lost of it stays lost."""
LONGEST = "traffic"
"""The table that outgrows all others, and is packed when a run has ended."""
WORTH_PACKING = 1 << 20
"""From how many bytes on a table is packed."""


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
        """Open all tables, to add to them; what is packed is unpacked first."""
        packed = self.packed(LONGEST)
        if packed.exists():
            if not self.path(LONGEST).exists():
                write_atomically(self.path(LONGEST), _unpacked(packed))
            packed.unlink()
            sync_folder(self.folder)
        self._files = {table: self.path(table).open("ab", buffering=0) for table in TABLES}

    def close(self) -> None:
        """Close all tables."""
        for file in self._files.values():
            file.close()
        self._files = {}

    def path(self, table: str) -> Path:
        """Return the file of a table."""
        return self.folder / f"{table}.jsonl"

    def packed(self, table: str) -> Path:
        """Return the file of a table that is packed."""
        return self.folder / f"{table}.jsonl.gz"

    def pack(self) -> None:
        """Pack the longest table: nothing is added to it any more. If both files are there, they say the same."""
        path = self.path(LONGEST)
        if os.path.getsize(path) < WORTH_PACKING:
            return
        self._files.pop(LONGEST).close()
        write_atomically(self.packed(LONGEST), gzip.compress(path.read_bytes(), mtime=0))
        path.unlink()
        sync_folder(self.folder)

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
        path, packed = self.path(table), self.packed(table)
        text = path.read_bytes() if path.exists() else _unpacked(packed) if packed.exists() else b""
        lines = text.splitlines()
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


def _unpacked(path: Path) -> bytes:
    try:
        return gzip.decompress(path.read_bytes())
    except (OSError, EOFError, zlib.error) as error:
        raise RunFolderError(f"{path} is damaged: put back a copy of it ({error})") from error


def read_object(where: str, text: bytes) -> dict[str, Any]:
    """Return an object written as JSON."""
    try:
        return dict(json.loads(text))
    except (ValueError, TypeError) as error:
        raise RunFolderError(f"{where} is damaged: put back a copy of it ({error})") from error
