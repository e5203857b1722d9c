"""How an engine and a worker process talk: messages through a pipe, large ones beside it through memory."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from typing import Any

from intarsia.blocks import IntarsiaError, pack, unpack

LARGE = 1 << 16
"""Bytes that a pipe holds: more would go through it piece by piece."""
KEPT = 1 << 24
"""Bytes of memory that stay for the next message."""
SIZES = "sizes"


def memory() -> int | None:
    """Return memory without a name that forked processes share, as an open file; None where there is no such thing."""
    try:
        return os.memfd_create("intarsia")
    except (AttributeError, OSError):  # another system, an old kernel, a sandbox that forbids it
        return None


class Mailbox:
    """One side's end of a pipe; with memory for what it writes and reads, if both sides have it."""

    def __init__(self, pipe: Connection, writes: int | None = None, reads: int | None = None) -> None:
        self.pipe, self.writes, self.reads = pipe, writes, reads

    def send(self, header: Mapping[str, Any], records: Sequence[bytes] = ()) -> None:
        """Send a message; any number of them may be on their way."""
        self.pipe.send_bytes(pack(header, records))

    def send_large(self, header: Mapping[str, Any], records: Sequence[bytes]) -> None:
        """Send a message whose records may be large; the next of this kind must wait until this one was received."""
        sizes = [len(record) for record in records]
        if self.writes is None or sum(sizes) < LARGE:
            self.send(header, records)
            return
        _write(self.writes, records)
        self.send({**header, SIZES: sizes})

    def receive(self) -> tuple[dict[str, Any], list[bytes]]:
        """Wait for a message."""
        header, records = unpack(self.pipe.recv_bytes())
        sizes = header.pop(SIZES, None)
        return header, records if sizes is None else _take(self.reads, sizes)

    def close(self) -> None:
        """Close the pipe, and give the memory back."""
        self.pipe.close()
        for file in (self.writes, self.reads):
            if file is not None:
                os.close(file)
        self.writes = self.reads = None


def _write(file: int, records: Sequence[bytes]) -> None:
    try:
        _put(file, records)
    except OSError as error:
        size = sum(map(len, records)) / 2**20
        raise IntarsiaError(
            f"there is no room for {size:.1f} MiB that a worker process is to share ({error}): try fewer workers"
        ) from error


def _put(file: int, records: Sequence[bytes]) -> None:
    place = 0
    for record in records:
        rest = memoryview(record)
        while rest:
            count = os.pwrite(file, rest, place)
            rest, place = rest[count:], place + count


def _take(file: int | None, sizes: Sequence[int]) -> list[bytes]:
    """Read what the other side wrote; memory that is more than usual is given back at once."""
    assert file is not None  # the other side writes only where this one reads
    records, place = [], 0
    for size in sizes:
        pieces: list[bytes] = []
        while size:
            pieces.append(os.pread(file, size, place))
            size, place = size - len(pieces[-1]), place + len(pieces[-1])
        records.append(pieces[0] if len(pieces) == 1 else b"".join(pieces))
    if place > KEPT:
        os.ftruncate(file, 0)
    return records
