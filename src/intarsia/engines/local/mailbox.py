"""How an engine and a worker process talk: messages through a pipe, large blocks beside it through memory."""

from __future__ import annotations

import math
import mmap
import os
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from typing import Any

import torch
from torch import Tensor

from intarsia.blocks import Block, pack, unpack
from intarsia.core import IntarsiaError

LARGE = 1 << 16
"""Bytes that a pipe holds: more would go through it piece by piece."""
BESIDE = 1 << 12
"""Bytes of blocks that go through memory, if there is any: it takes fewer copies than the pipe does."""
KEPT = 1 << 26
"""Bytes of memory that stay for the next message."""
ALIGNMENT = 64
PLACES = "places"

Place = list[Any]
"""Where a tensor lies: name, shape, type, whether it is a buffer, offset."""


def memory() -> int | None:
    """Return memory without a name that forked processes share, as an open file; None where there is no such thing."""
    try:
        return os.memfd_create("intarsia")
    except (AttributeError, OSError):  # another system, an old kernel, a sandbox that forbids it
        return None


class Mailbox:
    """One side's end of a pipe; with memory for what it writes and reads, if both sides have it."""

    def __init__(self, pipe: Connection, writes: int | None = None, reads: int | None = None) -> None:
        self.pipe = pipe
        self.writes = None if writes is None else _Memory(writes)
        self.reads = None if reads is None else _Memory(reads)

    def send(self, header: Mapping[str, Any], blocks: Sequence[Block] = ()) -> None:
        """Send a message; any number of them may be on their way."""
        self.pipe.send_bytes(pack(header, [block.to_bytes() for block in blocks]))

    def send_ahead(self, header: Mapping[str, Any]) -> bool:
        """Send a message to a side that is busy; if that would mean to wait until it reads, send nothing."""
        message = pack(header)
        if len(message) < LARGE:
            self.pipe.send_bytes(message)
        return len(message) < LARGE

    def send_large(self, header: Mapping[str, Any], blocks: Sequence[Block]) -> None:
        """Send a message whose blocks may be large; the next of this kind must wait until this one was received."""
        if self.writes is None or sum(block.nbytes for block in blocks) < BESIDE:
            self.send(header, blocks)
        else:
            self.send({**header, PLACES: self.writes.put(blocks)})

    def receive(self) -> tuple[dict[str, Any], list[Block]]:
        """Wait for a message; large blocks still lie in the memory, and must not be used after `release`."""
        header, records = unpack(self.pipe.recv_bytes())
        places = header.pop(PLACES, None)
        if places is None:
            return header, [Block.from_bytes(record) for record in records]
        assert self.reads is not None  # the other side writes only where this one reads
        return header, self.reads.get(places)

    def release(self) -> None:
        """Say that what was received is not used any more; memory that is more than usual is given back."""
        if self.reads is not None:
            self.reads.release()

    def close(self) -> None:
        """Close the pipe, and give the memory back."""
        self.pipe.close()
        for shared in (self.writes, self.reads):
            if shared is not None:
                shared.close()
        self.writes = self.reads = None


class _Memory:
    """Blocks in memory that two processes share: one writes, the other reads, never both."""

    def __init__(self, file: int) -> None:
        self.file = file
        self._map: mmap.mmap | None = None

    def put(self, blocks: Sequence[Block]) -> list[list[Place]]:
        """Write blocks; return where their tensors lie."""
        places, end = [], 0
        for block in blocks:
            own: list[Place] = []
            for entry in block.layout:
                own.append([entry.name, entry.shape, entry.dtype, entry.buffer, end])
                size = block.tensors[entry.name].nbytes
                end += math.ceil(size / ALIGNMENT) * ALIGNMENT
            places.append(own)
        self._reserve(end)
        for block, own in zip(blocks, places, strict=True):
            for place in own:
                self._at(place, end).copy_(block.tensors[place[0]])
        return places

    def get(self, places: Sequence[Sequence[Place]]) -> list[Block]:
        """Return the blocks that lie here, without a copy."""
        end = os.fstat(self.file).st_size
        return [
            Block({p[0]: self._at(p, end) for p in own}, frozenset(p[0] for p in own if p[3]))
            for own in places
        ]

    def release(self) -> None:
        """Give back what is more than usual."""
        if os.fstat(self.file).st_size > KEPT:
            self._map = None
            os.ftruncate(self.file, 0)

    def close(self) -> None:
        """Give all of it back."""
        self._map = None
        os.close(self.file)

    def _reserve(self, size: int) -> None:
        if os.fstat(self.file).st_size >= size:
            return
        try:
            os.posix_fallocate(self.file, 0, size)
        except OSError as error:
            raise IntarsiaError(
                f"there is no room for {size / 2**20:.1f} MiB that a worker process is to share ({error}): "
                "try fewer workers"
            ) from error

    def _at(self, place: Place, end: int) -> Tensor:
        _, shape, dtype, _, offset = place
        kind, count = getattr(torch, dtype), math.prod(shape)
        if not count:
            return torch.empty(shape, dtype=kind)
        if self._map is None or len(self._map) < end:
            self._map = mmap.mmap(self.file, end)
        return torch.frombuffer(self._map, dtype=kind, count=count, offset=offset).view(shape)
