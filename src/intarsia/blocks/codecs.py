"""Codecs: a client's update as a shorter message, a change against the version that it received.

What a codec loses stays with the client and is added to its next update (error feedback; Seide et al. 2014,
Karimireddy et al. 2019). Parameters are coded; buffers (statistics of norms) travel as they are. With `down`,
the server does the same: the next version of a block is the present one and a coded change, so that everybody
who holds the present one needs only the change.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from intarsia.blocks.address import Address
from intarsia.blocks.block import Block
from intarsia.blocks.wire import Task
from intarsia.core import Refused, Registry, WireError, part

Coded = dict[str, Tensor]


@part
class Codec:
    """Full values, as they are."""

    name: ClassVar[str] = "none"
    summary: ClassVar[str] = "full values, as they are"
    lossy: ClassVar[bool] = False

    feedback: bool = True
    """Whether what is lost is added to the next change of the block."""
    down: bool = False
    """Whether the server's blocks travel as changes too, to clients that hold the version before."""

    parts: ClassVar[frozenset[str]] = frozenset({""})
    """The names of the tensors that a coded tensor consists of."""

    def encode(self, change: Tensor) -> Coded:
        """Return a change as named tensors."""
        return {"": change}

    def decode(self, coded: Coded, shape: torch.Size) -> Tensor:
        """Return the change of coded tensors; what cannot be one is refused."""
        return _checked(coded, "", torch.float32, shape)


@part
class Half(Codec):
    """Changes as 16-bit numbers."""

    name: ClassVar[str] = "fp16"
    summary: ClassVar[str] = "changes as 16-bit numbers: half of the bytes"
    lossy: ClassVar[bool] = True
    parts: ClassVar[frozenset[str]] = frozenset({"half"})

    def encode(self, change: Tensor) -> Coded:
        """Return the change in half precision."""
        return {"half": change.half()}

    def decode(self, coded: Coded, shape: torch.Size) -> Tensor:
        """Return the change."""
        return _checked(coded, "half", torch.float16, shape).float()


@part
class Int8(Codec):
    """Changes as whole numbers from -127 to 127 with a scale for every output channel."""

    name: ClassVar[str] = "int8"
    summary: ClassVar[str] = "changes as 8-bit numbers with a scale a channel: a quarter of the bytes"
    lossy: ClassVar[bool] = True
    parts: ClassVar[frozenset[str]] = frozenset({"int8", "scale"})

    def encode(self, change: Tensor) -> Coded:
        """Return the numbers and their scales; a vector has one scale."""
        rows = _rows(change)
        scale = rows.abs().amax(1) / 127 if rows.numel() else rows.new_zeros(len(rows))
        steps = torch.where(scale > 0, scale, torch.ones_like(scale))
        return {
            "int8": (rows / steps[:, None]).round().clamp(-127, 127).to(torch.int8).view(change.shape),
            "scale": scale,
        }

    def decode(self, coded: Coded, shape: torch.Size) -> Tensor:
        """Return the change."""
        numbers = _checked(coded, "int8", torch.int8, shape)
        scale = _checked(coded, "scale", torch.float32, torch.Size([len(_rows(numbers))]))
        return (_rows(numbers).float() * scale[:, None]).view(shape)


@part
class TopK(Codec):
    """Only the largest changes of every tensor, with their places."""

    name: ClassVar[str] = "topk"
    summary: ClassVar[str] = "the largest changes of every tensor and their places"
    lossy: ClassVar[bool] = True
    parts: ClassVar[frozenset[str]] = frozenset({"at", "top"})

    share: Annotated[float, Field(gt=0, le=1)] = 0.05
    """Share of a tensor's numbers that travels (at least one)."""

    def encode(self, change: Tensor) -> Coded:
        """Return the largest values and where they stand, in order."""
        flat = change.reshape(-1)
        count = min(flat.numel(), max(1, round(self.share * flat.numel())))
        # A stable sort: equal values are taken in their order, on every machine.
        largest = torch.sort(flat.abs(), descending=True, stable=True).indices[:count]
        at = largest.sort().values
        return {"at": at.to(torch.int32), "top": flat[at]}

    def decode(self, coded: Coded, shape: torch.Size) -> Tensor:
        """Return the change: zero where nothing travelled."""
        flat = torch.zeros(shape.numel())
        at, top = coded["at"], coded["top"]
        if at.shape != top.shape or at.dim() != 1:
            raise Refused("a coded tensor has no places and values of the same number")
        _checked(coded, "at", torch.int32, at.shape)
        _checked(coded, "top", torch.float32, at.shape)
        inside = not at.numel() or (int(at.min()) >= 0 and int(at.max()) < flat.numel())
        if not inside or len(set(at.tolist())) < len(at):
            raise Refused("a coded tensor has places that are not in it, or twice the same")
        flat[at.long()] = top
        return flat.view(shape)


CODECS: Registry[type[Codec]] = Registry("codecs", Codec, (Codec, Half, Int8, TopK))


@dataclass(frozen=True)
class Code:
    """How the present version of a block follows from the one before."""

    base: Block
    change: Block
    version: str
    lost: Block

    @classmethod
    def next(cls, codec: Codec, merged: Block, present: Block, before: Code | None) -> tuple[Block, Code]:
        """Return the next version of a block as clients can make it, and how."""
        change, lost = encode_block(codec, merged, present, before.lost if before else None)
        block = decode_block(codec, change, present, "")
        return block, cls(present, change, block.version, lost)


def encode_block(
    codec: Codec, trained: Block, received: Block, residual: Block | None
) -> tuple[Block, Block]:
    """Return a trained block as it travels, and what that lost of it."""
    coded: dict[str, Tensor] = {}
    lost: dict[str, Tensor] = {}
    for name, tensor in trained.tensors.items():
        if not _is_coded(trained, name):
            coded[name] = tensor
            continue
        change = (tensor.double() - received.tensors[name].double()).float()
        if codec.feedback and residual is not None:
            change = change + residual.tensors[name]
        parts = codec.encode(change)
        coded |= {f"{name}|{key}": part for key, part in parts.items()}
        lost[name] = change - codec.decode(parts, change.shape)
    return Block(coded, trained.buffers), Block(lost)


def decode_block(codec: Codec, coded: Block, received: Block, name: str) -> Block:
    """Return the full values of a block that travelled; one that is not in this code is refused."""
    tensors = {}
    parts: dict[str, Coded] = {}
    for key, tensor in coded.tensors.items():
        owner, sign, part_name = key.rpartition("|")
        if sign:
            parts.setdefault(owner, {})[part_name] = tensor
        else:
            tensors[key] = tensor
    for owner, own in parts.items():
        if owner not in received.tensors or owner in tensors:
            raise Refused(f"tensor '{owner}' is not part of this block", block=name)
        old = received.tensors[owner]
        try:
            _check_parts(codec, own)
            change = codec.decode(own, old.shape)
        except Refused as error:
            raise Refused(f"tensor '{owner}', codec '{codec.name}': {error}", block=name) from None
        tensors[owner] = (old.double() + change.double()).to(old.dtype)
    return Block(tensors, coded.buffers)


def received(task: Task, codec: Codec, held: Mapping[str, Block]) -> dict[Address, Block]:
    """Return the blocks that came with a task; changes are applied to the versions that are held."""
    blocks = dict(task.blocks)
    for address, base in task.changes.items():
        blocks[address] = decode_block(codec, task.blocks[address], held[base], address.block)
        if blocks[address].version != task.versions[address]:
            raise WireError(f"the change of {address} does not lead to the version that the task names")
    return blocks


def coded_bytes(codec: Codec, block: Block) -> int:
    """Return how many bytes a block of this layout has as it travels."""
    return encode_block(codec, block, block, None)[0].nbytes if codec.lossy else block.nbytes


def _is_coded(block: Block, name: str) -> bool:
    return name not in block.buffers and block.tensors[name].is_floating_point()


def _rows(tensor: Tensor) -> Tensor:
    """Return a row for every output channel; a vector or a number is one row."""
    return tensor.reshape(len(tensor), -1) if tensor.dim() > 1 else tensor.reshape(1, -1)


def _check_parts(codec: Codec, coded: Coded) -> None:
    if coded.keys() != codec.parts:
        odd = ", ".join(sorted(map(repr, coded.keys() ^ codec.parts)))
        raise Refused(f"its parts and those of the codec differ in {odd}")


def _checked(coded: Mapping[str, Tensor], key: str, dtype: torch.dtype, shape: torch.Size) -> Tensor:
    tensor = coded[key]
    if tensor.dtype != dtype or tensor.shape != shape:
        form = f"{tensor.dtype}{list(tensor.shape)}"
        raise Refused(f"its part '{key}' is {form}, expected {dtype}{list(shape)}")
    return tensor
