"""The tables of a run: lines that are only added, and cut back to what a checkpoint says."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import zlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from intarsia.core import CheckpointError, RunFolderError, naming, sync_folder, write_atomically

TABLES = ("metrics", "traffic", "events", "judged", "groups", "notes", "clock", "seconds")
TIMES = "seconds"
"""The table that no result depends on: what is lost of it stays lost."""
LONGEST = "traffic"
"""The table that outgrows all others, and is packed when a run has ended."""
AT_ONCE = 1000
"""How many lines are read together."""
WORTH_PACKING = 1 << 20
"""From how many bytes on a table is packed."""
ALWAYS: Mapping[str, frozenset[str]] = {
    "metrics": frozenset({"round", "client", "split", "stage"}),
    "traffic": frozenset({"round", "client", "block", "group", "direction", "purpose", "bytes"}),
    "events": frozenset({"round", "kind", "message"}),
    "judged": frozenset({"client", "split", "n", "metrics", "tally", "usual_tally"}),
    "groups": frozenset({"round", "client", "block", "group"}),
    "notes": frozenset({"round", "kind"}),
    "clock": frozenset({"round", "client", "outcome", "asked", "answered"}),
    "seconds": frozenset({"round"}),
}
"""What every line of a table names."""


class Tables:
    """The files `metrics.jsonl`, `traffic.jsonl`, ... of one run folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._files: dict[str, IO[bytes]] = {}
        self._made: list[Path] = []
        """Files that were not there before they were opened."""
        self._hashes: dict[str, tuple[int, hashlib._Hash]] = {}
        """By table: the hash of so many bytes."""

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
        self._made = [self.path(table) for table in TABLES if not self.path(table).exists()]
        self._files = {table: self.path(table).open("ab", buffering=0) for table in TABLES}

    def forget_made(self) -> None:
        """Remove the empty files that opening made: the run does not go on."""
        for path in self._made:
            if path.exists() and not path.stat().st_size:
                path.unlink()

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
            text = b"".join([json.dumps(row).encode() + b"\n" for row in rows])
            lines = memoryview(text)
            if not text:
                continue
            with naming(self.path(table)):
                while lines:
                    done = self._files[table].write(lines)
                    self._grow(table, lines[:done])
                    lines = lines[done:]

    def lengths(self) -> dict[str, int]:
        """Return how long each table is, in bytes."""
        return {name: file.tell() for name, file in self._files.items()}

    def seals(self, lengths: Mapping[str, int]) -> dict[str, str]:
        """Return the hash of each table up to a length; only the one of times has none."""
        return {table: self._hash(table, length) for table, length in lengths.items() if table != TIMES}

    def _grow(self, table: str, data: memoryview) -> None:
        length, hashed = self._hashes.get(table, (0, hashlib.sha256()))
        if length == self._files[table].tell() - len(data):
            hashed.update(data)
            self._hashes[table] = (length + len(data), hashed)

    def _hash(self, table: str, length: int) -> str:
        if self._hashes.get(table, (-1, None))[0] != length:
            hashed, left = hashlib.sha256(), length
            with self.path(table).open("rb") as file:
                while left and (piece := file.read(min(left, 1 << 20))):
                    hashed.update(piece)
                    left -= len(piece)
            self._hashes[table] = (length - left, hashed)
        return self._hashes[table][1].hexdigest()

    def rows(self, table: str, growing: bool = False) -> list[dict[str, Any]]:
        """Return all lines of a table; of one that a run is adding to (`growing`), those that are whole."""
        path, packed = self.path(table), self.packed(table)
        text = path.read_bytes() if path.exists() else _unpacked(packed) if packed.exists() else b""
        lines = text[: text.rfind(b"\n") + 1 if growing else None].splitlines()
        pieces = (range(len(lines))[start : start + AT_ONCE] for start in range(0, len(lines), AT_ONCE))
        return [row for piece in pieces for row in _rows(table, path, lines, piece)]

    def check(self, lengths: Mapping[str, int], seals: Mapping[str, str], source: Path) -> None:
        """Refuse tables that are shorter than they were when `source` was written, or say something else."""
        for table, length in lengths.items():
            there = os.path.getsize(self.path(table))
            if there < length and table != TIMES:
                raise CheckpointError(
                    f"{self.path(table)} has {there} bytes, {source} says at least {length}: lines were lost"
                )
            if table in seals and self._hash(table, length) != seals[table]:
                raise CheckpointError(
                    f"{self.path(table)} is damaged: its first {length} bytes are not those that {source} names"
                )

    def cut_back(self, lengths: Mapping[str, int]) -> None:
        """Cut tables to what they were; of a table that is shorter by now, the whole lines stay."""
        self._hashes = {}
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


def _rows(table: str, path: Path, lines: Sequence[bytes], piece: range) -> list[dict[str, Any]]:
    """Return some lines as rows: read together, which is cheaper; one by one where that finds something wrong."""
    try:
        rows = json.loads(b"[" + b",".join(lines[piece.start : piece.stop]) + b"]")
    except (ValueError, RecursionError):
        rows = []
    needed = ALWAYS[table]
    if len(rows) == len(piece) and all(type(row) is dict and needed <= row.keys() for row in rows):
        return list(rows)
    return [_row(table, f"{path}, line {number + 1}", lines[number]) for number in piece]


def _row(table: str, where: str, text: bytes) -> dict[str, Any]:
    row = read_object(where, text)
    missing = ALWAYS[table] - row.keys()
    if missing:
        raise RunFolderError(f"{where} is damaged: put back a copy of it (it names no {min(missing)})")
    return row


def read_object(where: str, text: bytes) -> dict[str, Any]:
    """Return an object written as JSON."""
    try:
        return dict(json.loads(text))
    except (ValueError, TypeError, RecursionError) as error:
        raise RunFolderError(f"{where} is damaged: put back a copy of it ({error})") from error
