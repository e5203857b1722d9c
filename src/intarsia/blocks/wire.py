"""What travels: tasks to clients, updates back; as bytes, and counted.

A message is a frame: a JSON header and one safetensors record a block. Nothing else can be in it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import Field

from intarsia.blocks.address import Address
from intarsia.blocks.block import Block
from intarsia.blocks.plain import Count, Hash, Message, Name, Text, read_as, read_json
from intarsia.core import AddressError, WireError

Values = Mapping[str, Any]
"""Named plain values (numbers, strings, lists, tables) that travel beside the blocks."""

Direction = Literal["up", "down"]
MAGIC = b"intarsia"
K = TypeVar("K")
ROUNDS = 2**31
ABOUT = ("run", "round", "exchange", "purpose", "client", "state")


class _PlanHeader(Message):
    hold: dict[str, Text]
    train: list[Name]
    back: Annotated[list[Name], Field(alias="return")]


class _Header(Message):
    """What every message says beside its tensors."""

    run: Text
    round: Annotated[int, Field(ge=0, le=ROUNDS)]
    exchange: Name
    purpose: Name
    client: Name
    state: Text
    records: list[Text]
    values: dict[str, Any]


class _TaskHeader(_Header):
    plan: _PlanHeader
    versions: dict[str, Hash]
    changes: dict[str, Hash] = Field(default_factory=dict)


class _UpdateHeader(_Header):
    samples: Count
    tensors: list[Name] = Field(default_factory=list)


@dataclass(frozen=True)
class ClientPlan:
    """One client's part of an exchange: which addresses to hold, which blocks to train and to return."""

    hold: Mapping[str, Address]
    train: frozenset[str] = frozenset()
    give_back: frozenset[str] = frozenset()

    @cached_property
    def fetched(self) -> tuple[Address, ...]:
        """The addresses that live on the server, in the order of the model's blocks."""
        return tuple(a for a in self.hold.values() if not a.private)

    @cached_property
    def returned(self) -> tuple[Address, ...]:
        """The addresses that the client sends back."""
        return tuple(a for block, a in self.hold.items() if block in self.give_back and not a.private)

    def to_json(self) -> dict[str, Any]:
        """Return the plan as plain values."""
        return {
            "hold": {block: str(address) for block, address in self.hold.items()},
            "train": sorted(self.train),
            "return": sorted(self.give_back),
        }

    @classmethod
    def of(cls, header: _PlanHeader) -> ClientPlan:
        """Read a plan from the header of a task."""
        hold = {block: _address(text) for block, text in header.hold.items()}
        return cls(hold, frozenset(header.train), frozenset(header.back))


@dataclass(frozen=True)
class Plan:
    """One exchange: its name, what it is for, and every client's part in it."""

    exchange: str
    purpose: str
    clients: Mapping[str, ClientPlan]
    weights: Mapping[str, int]
    """What each client counts in the merge."""


@dataclass(frozen=True)
class Traffic:
    """One line of `traffic.jsonl`; the line with an empty block is the message itself."""

    round: int
    exchange: str
    purpose: str
    client: str
    block: str
    group: str
    direction: Direction
    bytes: int
    envelope: int

    def to_json(self) -> dict[str, Any]:
        """Return the line as plain values."""
        return dict(vars(self))


@dataclass(frozen=True)
class _Message:
    run: str
    round: int
    exchange: str
    purpose: str
    client: str
    state: str
    """For a task the client state it builds on, for an update the one that it leads to."""
    blocks: Mapping[Address, Block] = field(default_factory=dict)
    values: Values = field(default_factory=dict)

    direction: ClassVar[Direction]

    def header(self) -> dict[str, Any]:
        """Return all that is not a tensor."""
        records = [str(address) for address in self.blocks]
        return {n: getattr(self, n) for n in ABOUT} | {"records": records, "values": dict(self.values)}

    def records(self) -> list[Block]:
        """Return what travels beside the header."""
        return list(self.blocks.values())

    def to_bytes(self) -> bytes:
        """Return the message as it travels."""
        return pack(self.header(), [block.to_bytes() for block in self.records()])

    def traffic(self) -> list[Traffic]:
        """Return what this message costs on the wire, block by block."""

        def row(block: str, group: str, size: int, envelope: int) -> Traffic:
            head = (self.round, self.exchange, self.purpose, self.client)
            return Traffic(*head, block, group, self.direction, size, envelope)

        rows = [row(a.block, a.group, b.nbytes, b.envelope) for a, b in self.blocks.items()]
        rows += [row(name, "", b.nbytes, b.envelope) for name, b in self.named().items()]
        return [*rows, row("", "", 0, frame_overhead(self.header(), len(self.records())))]

    def named(self) -> Mapping[str, Block]:
        """Return the tensors that travel by name alone."""
        return {}


@dataclass(frozen=True)
class Task(_Message):
    """What travels to a client: its plan, the version of each block, and those blocks it does not hold."""

    direction: ClassVar[Direction] = "down"
    plan: ClientPlan = field(default_factory=lambda: ClientPlan({}))
    versions: Mapping[Address, str] = field(default_factory=dict)
    changes: Mapping[Address, str] = field(default_factory=dict)
    """The blocks that come as coded changes, and the version that the client holds and they apply to."""

    def header(self) -> dict[str, Any]:
        """Return all that is not a tensor."""
        versions = {str(address): version for address, version in self.versions.items()}
        changes = {str(address): version for address, version in self.changes.items()}
        more = {"changes": changes} if changes else {}
        return super().header() | {"plan": self.plan.to_json(), "versions": versions} | more

    @classmethod
    def from_header(cls, header: Mapping[str, Any], blocks: Sequence[Block] | None = None) -> Task:
        """Read a task from its header and the blocks that came with it (none: all are held)."""
        about = read_as(_TaskHeader, header, "a task")
        return cls(
            **_common(about, blocks),
            plan=ClientPlan.of(about.plan),
            versions={_address(text): version for text, version in about.versions.items()},
            changes={_address(text): version for text, version in about.changes.items()},
        )

    @classmethod
    def from_bytes(cls, data: bytes) -> Task:
        """Read a task that travelled."""
        return cls.from_header(*_read(data))


@dataclass(frozen=True)
class Update(_Message):
    """What travels back: the trained blocks, full values, and named values."""

    direction: ClassVar[Direction] = "up"
    samples: int = 0
    tensors: Mapping[str, Block] = field(default_factory=dict)
    """Tensors by name that are for the method to see and are never merged: predictions, class means."""

    def header(self) -> dict[str, Any]:
        """Return all that is not a tensor."""
        more = {"tensors": list(self.tensors)} if self.tensors else {}
        return super().header() | {"samples": self.samples} | more

    def records(self) -> list[Block]:
        """Return what travels beside the header: blocks, then named tensors."""
        return [*self.blocks.values(), *self.tensors.values()]

    @classmethod
    def from_header(cls, header: Mapping[str, Any], records: Sequence[Block]) -> Update:
        """Read an update from its header and the records that came with it."""
        about = read_as(_UpdateHeader, header, "an update")
        count = len(about.records)
        tensors = _named(about.tensors, records[count:])
        return cls(**_common(about, records[:count]), samples=about.samples, tensors=tensors)

    @classmethod
    def from_bytes(cls, data: bytes) -> Update:
        """Read an update that travelled."""
        return cls.from_header(*_read(data))

    def named(self) -> Mapping[str, Block]:
        """Return the tensors that travel by name alone."""
        return self.tensors

    def without_blocks(self) -> Update:
        """Return the update without its blocks, for when they are merged already."""
        return replace(self, blocks={})


def pack(header: Mapping[str, Any], records: Sequence[bytes] = ()) -> bytes:
    """Return a frame: magic, sizes, header, records."""
    text = _dumps(header)
    sizes = [len(text), *(len(record) for record in records)]
    prefix = MAGIC + len(sizes).to_bytes(8, "little") + b"".join(s.to_bytes(8, "little") for s in sizes)
    return b"".join([prefix, text, *records])


def frame_overhead(header: Mapping[str, Any], records: int) -> int:
    """Return the bytes of a frame that are not in its records."""
    return len(MAGIC) + 8 + 8 * (records + 1) + len(_dumps(header))


def unpack(data: bytes) -> tuple[dict[str, Any], list[bytes]]:
    """Read a frame; anything else is an error."""
    if data[: len(MAGIC)] != MAGIC:
        raise WireError(f"these {len(data)} bytes are no message of ours")
    count = int.from_bytes(data[8:16], "little")
    start = 16 + 8 * count
    if not 1 <= count <= 1 << 20 or start > len(data):
        raise WireError(f"a message of {len(data)} bytes is damaged in its first bytes")
    sizes = [int.from_bytes(data[16 + 8 * i : 24 + 8 * i], "little") for i in range(count)]
    if start + sum(sizes) != len(data):
        raise WireError(f"a message should have {start + sum(sizes)} bytes and has {len(data)}: cut short?")
    parts = []
    for size in sizes:
        parts.append(data[start : start + size])
        start += size
    return read_json(parts[0], "the header of a message"), parts[1:]


def _common(header: _Header, blocks: Sequence[Block] | None) -> dict[str, Any]:
    addresses = [_address(text) for text in header.records]
    named = {} if blocks is None else _named(addresses, blocks)
    return {n: getattr(header, n) for n in ABOUT} | {"values": header.values, "blocks": named}


def _named(names: Sequence[K], blocks: Sequence[Block]) -> dict[K, Block]:
    """Return blocks by name; every name once, and as many of them as there are blocks."""
    named = dict(zip(names, blocks, strict=False))
    if not len(named) == len(names) == len(blocks):
        raise WireError(
            f"a message names {len(names)} blocks, and holds {len(blocks)}: {len(named)} are clear"
        )
    return named


def _address(text: str) -> Address:
    try:
        return Address.parse(text)
    except AddressError as error:
        raise WireError(str(error)[:200]) from None


def _read(data: bytes) -> tuple[dict[str, Any], list[Block]]:
    header, records = unpack(data)
    return header, [Block.from_bytes(record) for record in records]


def _dumps(header: Mapping[str, Any]) -> bytes:
    return json.dumps(header, separators=(",", ":"), ensure_ascii=False, allow_nan=True).encode()
