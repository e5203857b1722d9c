"""A block: a named part of a model, its parameters and its buffers, as plain tensors."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from intarsia.blocks.plain import LARGEST, read_json
from intarsia.core import Refused, WireError

DTYPES = frozenset(
    {
        *(torch.float64, torch.float32, torch.float16, torch.bfloat16),
        *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool),
    }
)
"""What numbers in a block can be: what torch compares and adds up."""


@dataclass(frozen=True)
class TensorLayout:
    """Name, shape, type and kind of one tensor of a block."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    buffer: bool

    def __str__(self) -> str:
        return f"{self.name}: {self.dtype}{list(self.shape)}"


Layout = tuple[TensorLayout, ...]


@dataclass(frozen=True)
class Block:
    """Tensors by name; which of them are buffers; content never changes after creation."""

    tensors: Mapping[str, Tensor]
    buffers: frozenset[str] = field(default=frozenset())

    @cached_property
    def layout(self) -> Layout:
        """Names, shapes and types, ordered by name."""
        return tuple(
            TensorLayout(name, tuple(t.shape), str(t.dtype).removeprefix("torch."), name in self.buffers)
            for name, t in sorted(self.tensors.items())
        )

    def alike(self, tensors: Mapping[str, Tensor]) -> Block:
        """Return a block with other values in the same layout, which the caller vouches for."""
        block = Block(tensors, self.buffers)
        block.__dict__["layout"] = self.layout
        return block

    @cached_property
    def finite(self) -> bool:
        """Whether no number is a NaN or an infinity."""
        return not self.flaw

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of every tensor, by name."""
        return {entry.name: entry.shape for entry in self.layout}

    @cached_property
    def parameters(self) -> int:
        """How many numbers the parameters hold (buffers not counted)."""
        return sum(t.numel() for name, t in self.tensors.items() if name not in self.buffers)

    @cached_property
    def nbytes(self) -> int:
        """Bytes of all tensors, buffers too: what travels when the block does."""
        return sum(t.numel() * t.element_size() for t in self.tensors.values())

    @cached_property
    def version(self) -> str:
        """The hash of the content: layout and every byte."""
        digest = hashlib.sha256(json.dumps([[*vars(entry).values()] for entry in self.layout]).encode())
        for entry in self.layout:
            digest.update(_raw(self.tensors[entry.name]))
        return digest.hexdigest()[:32]

    @cached_property
    def flaw(self) -> str:
        """The first tensor that holds a NaN or an infinity, in words; empty if all values are finite."""
        return next((f"tensor '{n}' holds {kind}" for n, t in self.tensors.items() if (kind := _flaw(t))), "")

    def copy(self, version: str) -> Block:
        """Return a copy in memory of its own, whose version is known already."""
        block = Block({name: t.clone() for name, t in self.tensors.items()}, self.buffers)
        vars(block)["version"] = version
        return block

    @cached_property
    def envelope(self) -> int:
        """Bytes that travel beside the tensors: names, shapes and types."""
        return len(_header(self.layout)[0])

    def pieces(self) -> list[bytes | memoryview]:
        """Return the block as safetensors, uncopied: the header, then each tensor's memory."""
        header, order = _header(self.layout)
        return [header, *(_raw(self.tensors[name]) for name in order)]

    def to_bytes(self) -> bytes:
        """Return the block as safetensors."""
        return b"".join(self.pieces())

    @classmethod
    def from_bytes(cls, data: bytes) -> Block:
        """Read a block from safetensors; anything else is an error."""
        try:
            tensors = safetensors.torch.load(data)
        except (SafetensorError, ValueError, KeyError, TypeError, RuntimeError, OverflowError) as error:
            raise WireError(f"these {len(data)} bytes hold no block of ours: {error!r}") from error
        return cls(tensors, _buffers(data, tensors))


def check_block(block: Block, expected: Layout, name: str) -> dict[str, float]:
    """Refuse a block with a wrong name, shape or type, a NaN or an infinity; return each tensor's largest."""
    if block.layout != expected:
        raise Refused(_difference(block.layout, expected), block=name)
    largest = {}
    for tensor_name, tensor in block.tensors.items():
        if tensor.is_floating_point():
            largest[tensor_name] = magnitude(tensor)
            if not math.isfinite(largest[tensor_name]):
                raise Refused(f"tensor '{tensor_name}' holds {_flaw(tensor)}", block=name)
        elif tensor.dtype != torch.bool and magnitude(tensor) > LARGEST:
            raise Refused(f"tensor '{tensor_name}' holds a count of more than {LARGEST}", block=name)
    return largest


def _flaw(tensor: Tensor) -> str:
    values = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    if values.is_floating_point() and values.element_size() == 1:  # torch does not compare numbers of 8 bits
        values = values.float()
    if not values.is_floating_point() or math.isfinite(magnitude(values)):
        return ""
    return "a NaN" if torch.isnan(values).any() else "an infinity"


def magnitude(tensor: Tensor) -> float:
    """Return the largest absolute value in one pass: NaN or infinity where there is one."""
    if not tensor.numel():
        return 0.0
    low, high = torch.aminmax(tensor)  # twenty times as fast as a norm
    return max(-float(low), float(high))


def _difference(got: Layout, expected: Layout) -> str:
    got_by_name = {entry.name: entry for entry in got}
    expected_by_name = {entry.name: entry for entry in expected}
    for name in expected_by_name.keys() - got_by_name.keys():
        return f"tensor '{name}' is missing"
    for name in got_by_name.keys() - expected_by_name.keys():
        return f"tensor '{name}' is not part of this block"
    wrong = next(name for name, entry in expected_by_name.items() if got_by_name[name] != entry)
    return f"got {got_by_name[wrong]}, expected {expected_by_name[wrong]}"


def _buffers(data: bytes, tensors: Mapping[str, Tensor]) -> frozenset[str]:
    """Return which tensors of a block are buffers; names and types that are none of ours are errors."""
    header = read_json(data[8 : 8 + int.from_bytes(data[:8], "little")], "the header of a block")
    metadata = header.get("__metadata__")
    text = metadata.get("buffers") if isinstance(metadata, dict) and len(metadata) == 1 else None
    try:
        buffers = json.loads(text) if isinstance(text, str) else None
    except (ValueError, RecursionError):
        buffers = None
    if not isinstance(buffers, list) or not all(isinstance(n, str) and n in tensors for n in buffers):
        raise WireError("a block does not say which of its tensors are buffers")
    odd = next((t.dtype for t in tensors.values() if t.dtype not in DTYPES), None)
    if odd is not None:
        raise WireError(f"a block holds numbers of type {odd}, which cannot be merged")
    return frozenset(buffers)


def _metadata(buffers: frozenset[str]) -> dict[str, str]:
    return {"buffers": json.dumps(sorted(buffers))}


def _raw(tensor: Tensor) -> memoryview:
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return memoryview(flat.view(torch.uint8).numpy().data)


@lru_cache(maxsize=4096)
def _header(layout: Layout) -> tuple[bytes, tuple[str, ...]]:
    """Return a block's header and the order of its tensors: they are the same whatever the values are."""
    blank = {entry.name: torch.zeros(entry.shape, dtype=getattr(torch, entry.dtype)) for entry in layout}
    buffers = frozenset(entry.name for entry in layout if entry.buffer)
    data = safetensors.torch.save(blank, _metadata(buffers))
    header = data[: 8 + int.from_bytes(data[:8], "little")]
    places = {n: about["data_offsets"] for n, about in json.loads(header[8:]).items() if n != "__metadata__"}
    return header, tuple(sorted(places, key=places.__getitem__))
