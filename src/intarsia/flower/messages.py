"""What server and site tell each other: a header of plain values, and blocks by name.

Between relay and agent a message is a frame of bytes; between SuperLink and SuperNode it is a Flower message with
one record a block (`message_records.py`). Either way a block is safetensors: names, types, shapes and raw numbers.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from intarsia.blocks import Block
from intarsia.blocks.plain import read_json, shown
from intarsia.core import WireError

PROTOCOL = 1
"""Both ends must speak the same; raised whenever a message changes its meaning."""

MAGIC = b"intarsia"
INDEX_LIMIT = 1 << 28
PIECE = 1 << 20
LIMIT = 1 << 36
"""Bytes that no message has, unless its reader allows less."""


@dataclass(frozen=True)
class SiteMessage:
    """A header and blocks."""

    header: Mapping[str, Any]
    blocks: Mapping[str, Block] = field(default_factory=dict)

    def header_text(self) -> str:
        """Return the header as it travels."""
        return json.dumps({**self.header, "protocol": PROTOCOL}, separators=(",", ":"))

    def records(self) -> Iterator[tuple[str, bytes]]:
        """Yield every block as it travels."""
        for name, block in self.blocks.items():
            yield name, block.to_bytes()

    @classmethod
    def of(cls, header_text: object, records: Mapping[str, bytes]) -> SiteMessage:
        """Make a message of what arrived; anything that is none is an error."""
        return cls(_header(header_text), {name: Block.from_bytes(data) for name, data in records.items()})

    def frame(self) -> Iterator[bytes]:
        """Yield the message as bytes, as relay and agent exchange it."""
        records = dict(self.records())
        index = {"header": self.header_text(), "records": {name: len(data) for name, data in records.items()}}
        text = json.dumps(index).encode()
        yield MAGIC + len(text).to_bytes(8, "little") + text
        yield from records.values()

    @classmethod
    def read(cls, read: Callable[[int], bytes], limit: int = LIMIT) -> SiteMessage:
        """Read a message of at most so many bytes from a function that returns up to so many of them."""
        if take_bytes(read, len(MAGIC)) != MAGIC:
            raise WireError("what came in is no message of ours")
        size = int.from_bytes(take_bytes(read, 8), "little")
        if size > min(INDEX_LIMIT, limit):
            raise WireError(f"a message says that its index has {size} bytes")
        index = read_json(take_bytes(read, size), "the index of a message")
        lengths = _lengths(index, limit)
        return cls.of(index["header"], {name: take_bytes(read, length) for name, length in lengths.items()})


def _header(text: object) -> dict[str, Any]:
    if not isinstance(text, str):
        raise WireError("the header of a message is no text")
    header = read_json(text, "the header of a message")
    if header.pop("protocol", None) != PROTOCOL:
        raise WireError("server and site have different versions of Intarsia: install the same at both")
    return header


def _lengths(index: Mapping[str, Any], limit: int) -> dict[str, int]:
    """Return how many bytes each block has, by an index."""
    lengths = index.get("records")
    if index.keys() != {"header", "records"} or not isinstance(lengths, dict):
        raise WireError("the index of a message does not name a header and records")
    for name, length in lengths.items():
        if type(length) is not int or not 0 <= length <= limit:
            raise WireError(
                f"block {shown(name)} of a message has {shown(length)} bytes; {limit} are possible"
            )
    if sum(lengths.values()) > limit:
        raise WireError(f"a message has {sum(lengths.values())} bytes; {limit} are possible")
    return lengths


def take_bytes(read: Callable[[int], bytes], size: int) -> bytes:
    """Read so many bytes; memory grows with what has come, not with what was announced."""
    data = bytearray()
    while len(data) < size:
        piece = read(min(size - len(data), PIECE))
        if not piece:
            raise WireError(f"a message ended after {len(data)} of {size} bytes")
        data += piece
    return bytes(data)
