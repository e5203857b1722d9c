"""What server and site tell each other: a header of plain values, and blocks by name.

Between relay and agent a parcel is a frame of bytes; between SuperLink and SuperNode it is a Flower message with
one record a block (`records.py`). Either way tensors travel as raw bytes with name, type and shape.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from intarsia.blocks import Block, WireError

PROTOCOL = 1
"""Both ends must speak the same; raised whenever a parcel changes its meaning."""

MAGIC = b"intarsia"
INDEX_LIMIT = 1 << 28
BUFFERS = "buffers"

DTYPES = {
    str(kind).removeprefix("torch."): kind
    for kind in (
        torch.float64,
        torch.float32,
        torch.float16,
        torch.bfloat16,
        torch.int64,
        torch.int32,
        torch.int16,
        torch.int8,
        torch.uint8,
        torch.bool,
    )
}

Entry = tuple[str, str, tuple[int, ...], bytes]
"""Name, type, shape and raw bytes of a tensor."""


@dataclass(frozen=True)
class Parcel:
    """A header and blocks."""

    header: Mapping[str, Any]
    blocks: Mapping[str, Block] = field(default_factory=dict)

    def full_header(self) -> str:
        """Return the header as JSON, with the names of each block's buffers."""
        buffers = {name: sorted(block.buffers) for name, block in self.blocks.items() if block.buffers}
        return json.dumps({**self.header, "protocol": PROTOCOL, BUFFERS: buffers}, separators=(",", ":"))

    def entries(self) -> Iterator[tuple[str, list[Entry]]]:
        """Yield every block's tensors as raw bytes."""
        for name, block in self.blocks.items():
            yield name, [_entry(key, tensor) for key, tensor in block.tensors.items()]

    @classmethod
    def of(cls, header_text: object, records: Mapping[str, Sequence[Entry]]) -> Parcel:
        """Make a parcel of what arrived; anything that is none is an error."""
        header = _header(header_text)
        buffers = header.pop(BUFFERS, {})
        try:
            blocks = {
                name: Block(
                    {entry[0]: _tensor(name, *entry) for entry in entries}, frozenset(buffers.get(name, ()))
                )
                for name, entries in records.items()
            }
        except (TypeError, AttributeError, ValueError) as error:
            raise WireError(f"the blocks of a message are damaged: {error!r}") from error
        return cls(header, blocks)

    def frame(self) -> Iterator[bytes]:
        """Yield the parcel as bytes, as relay and agent exchange it."""
        entries = dict(self.entries())
        index = {
            "header": self.full_header(),
            "records": {
                n: [[k, d, list(s), len(data)] for k, d, s, data in own] for n, own in entries.items()
            },
        }
        text = json.dumps(index).encode()
        yield MAGIC + len(text).to_bytes(8, "little") + text
        for own in entries.values():
            for entry in own:
                yield entry[3]

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
            records = {
                name: [(key, kind, tuple(shape), _take(read, length)) for key, kind, shape, length in entries]
                for name, entries in index["records"].items()
            }
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


def _entry(name: str, tensor: Tensor) -> Entry:
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    kind = str(tensor.dtype).removeprefix("torch.")
    if kind not in DTYPES or sys.byteorder != "little":
        raise WireError(f"tensor '{name}' ({kind}) cannot travel from this machine")
    return name, kind, tuple(tensor.shape), flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""


def _tensor(block: str, name: str, kind: str, shape: tuple[int, ...], data: bytes) -> Tensor:
    if kind not in DTYPES or any(not isinstance(size, int) or size < 0 for size in shape):
        raise WireError(f"block '{block}': tensor '{name}' has type {kind!r} and shape {list(shape)}")
    dtype = DTYPES[kind]
    if len(data) != math.prod(shape) * dtype.itemsize:
        raise WireError(f"block '{block}': tensor '{name}' {kind}{list(shape)} came with {len(data)} bytes")
    if not data:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(bytearray(data), dtype=dtype).reshape(shape)


def _take(read: Callable[[int], bytes], size: int) -> bytes:
    data = read(size)
    if len(data) < size:
        raise WireError(f"a message ended after {len(data)} of {size} bytes")
    return data
