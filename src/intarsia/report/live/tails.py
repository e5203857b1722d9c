"""Tables that grow: only what is new of them is read."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

PIECE = 1 << 20
"""How many bytes are read at once."""
MOST_LINE = 16 << 20
"""How long a line may be: no row of a table is."""
MARK = 64
"""How many bytes before the place that was reached must be as they were: else the table is another one."""
Row = dict[str, Any]


class OtherTable(Exception):  # noqa: N818 - it tells of a change, not of an error
    """A table is not the one that was read so far: it was cut back, or replaced."""


class Tail:
    """A table of a run folder, and how far it has been read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.place = 0
        self._mark = b""
        self.damaged = 0
        """How many lines are no rows: they are left out."""

    def next(self) -> list[Row]:
        """Return the whole lines of the next piece, as rows; none where there is nothing new."""
        try:
            if os.path.getsize(self.path) == self.place:
                return []
            with self.path.open("rb") as file:
                text = self._read(file)
        except FileNotFoundError:
            if self.place:
                raise OtherTable(self.path) from None
            return []
        text = text[: text.rfind(b"\n") + 1]
        self.place += len(text)
        self._mark = (self._mark + text)[-MARK:]
        return self._rows(text)

    def _read(self, file: Any) -> bytes:
        file.seek(self.place - len(self._mark))
        text: bytes = file.read(len(self._mark) + PIECE)
        if text[: len(self._mark)] != self._mark:
            raise OtherTable(self.path)
        text = text[len(self._mark) :]
        while text and b"\n" not in text and (more := file.read(PIECE)):
            text += more
            if len(text) > MOST_LINE:
                raise ValueError(f"{self.path.name} has a line of more than {MOST_LINE >> 20} MB")
        return text

    def _rows(self, text: bytes) -> list[Row]:
        lines = text.splitlines()
        try:
            rows = json.loads(b"[" + b",".join(lines) + b"]")
            if len(rows) == len(lines) and all(type(row) is dict for row in rows):
                return list(rows)
        except (ValueError, RecursionError):
            pass
        found = [row for line in lines if (row := _row(line)) is not None]
        self.damaged += len(lines) - len(found)
        return found


def _row(line: bytes) -> Row | None:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) else None
