"""What server and site tell each other: a header of plain values, and blocks by name.

Between relay and agent a parcel is a frame of bytes; between SuperLink and SuperNode it is a Flower message with
one record a block (`records.py`). Either way a block is safetensors: names, types, shapes and raw numbers.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from intarsia.blocks import Block, WireError

PROTOCOL = 1
"""Both ends must speak the same; raised whenever a parcel changes its meaning."""

MAGIC = b"intarsia"
INDEX_LIMIT = 1 << 28


@dataclass(frozen=True)
class Parcel:
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
    def of(cls, header_text: object, records: Mapping[str, bytes]) -> Parcel:
        """Make a parcel of what arrived; anything that is none is an error."""
        return cls(_header(header_text), {name: Block.from_bytes(data) for name, data in records.items()})

    def frame(self) -> Iterator[bytes]:
        """Yield the parcel as bytes, as relay and agent exchange it."""
        records = dict(self.records())
        index = {"header": self.header_text(), "records": {name: len(data) for name, data in records.items()}}
        text = json.dumps(index).encode()
        yield MAGIC + len(text).to_bytes(8, "little") + text
        yield from records.values()

    @classmethod
    def read(cls, read: Callable[[int], bytes]) -> Parcel:
        """Read a parcel from a function that returns so many bytes."""
        if _take(read, len(MAGIC)) != MAGIC:
            raise WireError("what came in is no message of ours")
        size = int.from_bytes(_take(read, 8), "little")
        if size > INDEX_LIMIT:
            raise WireError(f"a message says that its index has {size} bytes")
        try:
            index = json.loads(_take(read, size))
            records = {name: _take(read, length) for name, length in index["records"].items()}
            return cls.of(index["header"], records)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise WireError(f"the index of a message is damaged: {error!r}") from error


def _header(text: object) -> dict[str, Any]:
    try:
        header = json.loads(text) if isinstance(text, str) else None
    except (ValueError, RecursionError) as error:
        raise WireError(f"the header of a message is damaged: {error}") from error
    if not isinstance(header, dict):
        raise WireError("the header of a message is no table")
    if header.pop("protocol", None) != PROTOCOL:
        raise WireError("server and site have different versions of Intarsia: install the same at both")
    return header


def _take(read: Callable[[int], bytes], size: int) -> bytes:
    data = read(size)
    if len(data) < size:
        raise WireError(f"a message ended after {len(data)} of {size} bytes")
    return data
