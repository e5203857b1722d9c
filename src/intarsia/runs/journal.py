"""The clients' journal: what a run knows of its clients, written as it changes.

A checkpoint adds a line with the clients that changed. Every line is sealed with its own hash and lies in two files, so
that damage stays where it is: a line that is damaged in one of them is taken from the other. A journal begins with
everyone; when the changes outgrow that, the next one begins, so that none grows for ever.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, TypeAdapter, ValidationError

from intarsia.blocks import VERSION
from intarsia.clients import State
from intarsia.core import CheckpointError, naming
from intarsia.runs.state import ClientRecord

SLACK = 1 << 16
"""How many bytes of changes are always borne before a journal begins anew."""


class ForeignCheckpoint(CheckpointError):  # noqa: N818
    """A whole checkpoint of another run, another version or a stranger: it is refused, and left as it is."""


@dataclass(frozen=True)
class _Record:
    """A client's record, as it is to be in a file."""

    held: Mapping[str, str] = field(default_factory=dict)
    state: State = field(default_factory=dict)


_RECORDS = TypeAdapter(dict[str, _Record])


def foreign(path: Path, why: str) -> ForeignCheckpoint:
    """Return the error of a file that is whole, and that no run of ours has written."""
    return ForeignCheckpoint(
        f"{path} holds what Intarsia does not write ({why}). Nothing was changed; do not go on with a folder that you "
        "do not trust"
    )


@dataclass(frozen=True)
class Mark:
    """How far a journal had been written at a checkpoint."""

    number: Annotated[int, Field(ge=1, le=1 << 53)]
    length: Annotated[int, Field(ge=0)] = 0
    seal: str = ""
    """The hash of all lines so far."""

    def then(self, line: bytes) -> Mark:
        """Return the mark after one more line."""
        seal = hashlib.sha256(self.seal.encode() + line).hexdigest()
        return Mark(self.number, self.length + len(line), seal)


@dataclass(frozen=True)
class Journal:
    """A journal that changes can be added to."""

    mark: Mark
    whole: int
    """The bytes of its first line, which holds everyone."""

    @property
    def outgrown(self) -> bool:
        """Whether it is time to begin the next one."""
        return self.mark.length > 2 * self.whole + SLACK


class Journals:
    """The journals of a run, in its folder for checkpoints."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def begin(self, everyone: Mapping[str, ClientRecord]) -> Journal:
        """Begin the next journal with the records of all clients."""
        mark = self._add(Mark(max(self._numbers(), default=0) + 1), everyone)
        return Journal(mark, mark.length)

    def add(self, journal: Journal, changed: Mapping[str, ClientRecord]) -> Journal:
        """Add the records of the clients that changed; lines that no checkpoint names are replaced."""
        return Journal(self._add(journal.mark, changed), journal.whole) if changed else journal

    def files(self, number: int) -> list[Path]:
        """Return the files of a journal: the same lines, twice."""
        return [self.folder / f"clients-{number}{copy}.jsonl" for copy in ("", ".copy")]

    def read(self, mark: Mark) -> tuple[dict[str, ClientRecord], Journal | None]:
        """Return the records at a mark, and the journal to add to: None if it is damaged, if only in one file."""
        files, records = self.files(mark.number), dict[str, Any]()
        copies = [_start_of(path, mark.length) for path in files]
        at, whole = Mark(mark.number), 0
        for line in _lines(copies, files[0], mark.length):
            records |= _content(line, files[0])
            at, whole = at.then(line), whole or len(line)
        if at != mark:
            raise CheckpointError(f"{files[0]} is damaged: it is not what its checkpoint names")
        return _checked(records, files[0]), Journal(mark, whole) if copies[0] == copies[1] else None

    def clear(self, keep: Collection[int]) -> None:
        """Remove all other journals than these."""
        for number in self._numbers() - set(keep):
            for path in self.files(number):
                path.unlink(missing_ok=True)

    def _add(self, mark: Mark, records: Mapping[str, ClientRecord]) -> Mark:
        own = (json.dumps(name).encode() + b": " + record.text for name, record in records.items())
        line = _sealed(b"{" + b", ".join(own) + b"}")
        for path in self.files(mark.number):
            with naming(path), path.open("ab") as file:
                file.truncate(mark.length)
                file.write(line)
        return mark.then(line)

    def _numbers(self) -> set[int]:
        names = (re.fullmatch(r"clients-(\d+)(\.copy)?\.jsonl", path.name) for path in self.folder.iterdir())
        return {int(name[1]) for name in names if name}


def _sealed(text: bytes) -> bytes:
    return hashlib.sha256(text).hexdigest().encode() + b" " + text + b"\n"


def _start_of(path: Path, length: int) -> bytes:
    if not path.exists():
        return b""
    with path.open("rb") as file:
        return file.read(min(length, path.stat().st_size))


def _lines(copies: Sequence[bytes], path: Path, end: int) -> Iterator[bytes]:
    """Return every line, from the first of the copies in which it is whole."""
    at = 0
    while at < end:
        found = [line for copy in copies if (line := copy[at : copy.find(b"\n", at) + 1]) and _is_whole(line)]
        if not found:
            raise CheckpointError(f"{path} is damaged or cut short at byte {at}, and so is its copy")
        yield found[0]
        at += len(found[0])


def _is_whole(line: bytes) -> bool:
    return _sealed(line.partition(b" ")[2].removesuffix(b"\n")) == line


def _content(line: bytes, path: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(line.partition(b" ")[2]))
    except (ValueError, TypeError, RecursionError) as error:
        raise foreign(path, str(error)) from None


def _checked(records: Mapping[str, Any], path: Path) -> dict[str, ClientRecord]:
    """Return the records; what is no version of a block must not come near a path."""
    try:
        plain = _RECORDS.validate_python(records)
        checked = {name: ClientRecord(record.held, record.state) for name, record in plain.items()}
        private = {version for record in checked.values() for version in record.private}
        TypeAdapter(set[Annotated[str, Field(pattern=f"^{VERSION}$")]]).validate_python(private)
    except (ValidationError, AttributeError, TypeError) as error:
        raise foreign(path, str(error)) from None
    return checked
