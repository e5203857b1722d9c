"""Secure sums: what is set, what server and clients say to each other, and what may be answered.

Bonawitz et al. 2017, "Practical secure aggregation for privacy-preserving machine learning", Figure 4, per address.
A session is one exchange that merges: clients make keys (`KEYS`), share their secrets (`SHARES`), send their part of
the sums under masks, sign who came (`AGREE`), and give what takes the masks off the sums (`OPEN`).
Deviations: masks are added to whole steps of the grid that all merges add, modulo 2^64, so that nothing is rounded;
every address has masks of its own, among its holders; a client's own mask of one address is opened without the others.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any

import torch
from pydantic import Field

from intarsia.blocks import Expected, Table, Task
from intarsia.blocks.expected import Kind
from intarsia.blocks.plain import Count, Message, Name, Text, read_as, shown
from intarsia.core import part
from intarsia.trust.shamir import SHARE

KEYS, SHARES, AGREE, OPEN = "secure keys", "secure shares", "secure agree", "secure open"
STEPS = (KEYS, SHARES, AGREE, OPEN)
"""The exchanges around one that merges."""
MASKED = "secure_sums"
"""What a task says, among its values, where the answer goes out under masks."""
TAG = 16
"""Bytes that sealing adds."""


@part
class SecureSums:
    """Whether the server learns sums alone, and of how many clients at least."""

    on: bool = False
    """Whether clients' updates travel under masks."""
    floor: Annotated[int, Field(ge=2)] = 3
    """The fewest clients whose updates are summed: an address with fewer is not opened."""
    threshold: Annotated[float, Field(ge=0.5, lt=1)] = 0.6
    """Which share of the clients of an exchange must still be there to open its sums, and one more: as many would have
    to conspire with the server to see a single update."""

    def needed(self, members: int) -> int:
        """Return how many of these clients must be there to open sums."""
        return min(members, math.floor(self.threshold * members) + 1)


class Keys(Message):
    """A client's public keys of one session, signed."""

    mask: Text
    seal: Text
    signature: Text


class _Session(Message):
    run: Text
    round: Count
    exchange: Name
    floor: Count
    threshold: Count
    members: dict[Name, Keys]
    holders: dict[Name, list[Name]]


class Agreed(Message):
    """Who came, as the server says."""

    survivors: list[Name]


class Opening(Message):
    """What a client needs to give shares: everyone's signature of who came, and what was sealed for it."""

    signatures: dict[Name, Text]
    sealed: dict[Name, Text]
    rows: list[Count]


class Masking(Message):
    """How a client's answer is weighted and masked."""

    members: list[Name]
    weight: Count
    planned: dict[Name, Count]


@dataclass(frozen=True)
class Session:
    """Who masks what with whom, in one exchange of one round."""

    run: str
    round: int
    exchange: str
    floor: int
    threshold: int
    members: Mapping[str, Keys]
    holders: Mapping[str, Sequence[str]]
    """Who holds each address, by its name."""

    @classmethod
    def read(cls, table: Any) -> Session:
        """Read a session that travelled."""
        about = read_as(_Session, table, "a session of secure sums")
        return cls(**{name: getattr(about, name) for name in _Session.model_fields})

    def to_json(self) -> dict[str, Any]:
        """Return the session as plain values."""
        members = {name: keys.model_dump() for name, keys in self.members.items()}
        plain = {name: getattr(self, name) for name in _Session.model_fields}
        return {**plain, "members": members, "holders": {a: [*own] for a, own in self.holders.items()}}

    @cached_property
    def digest(self) -> bytes:
        """What tells this session from all others: all that is made for it is bound to it."""
        return digest("session", self.to_json())

    @cached_property
    def order(self) -> list[str]:
        """The members in the order of their shares."""
        return sorted(self.members)

    def addresses(self, client: str) -> list[str]:
        """Return the addresses that a member holds."""
        return sorted(address for address, own in self.holders.items() if client in own)

    def there(self, address: str, clients: Sequence[str]) -> list[str]:
        """Return which of these clients hold an address."""
        return sorted(set(self.holders[address]) & set(clients))

    def row(self, client: str) -> int:
        """Return how many bytes a member seals for each other one."""
        return SHARE * (1 + len(self.addresses(client))) + TAG

    def opening(self, members: Sequence[str], survivors: Sequence[str]) -> Opened:
        """Return what is opened if these members masked, and these of them came."""
        came = {a: own for a in sorted(self.holders) if (own := self.there(a, survivors))}
        whole = {a: own for a, own in came.items() if len(own) >= self.floor}
        return Opened(sorted(set(members) - set(survivors)), whole, sorted(came.keys() - whole.keys()))


@dataclass(frozen=True)
class Opened:
    """What is opened of a session."""

    dropped: Sequence[str]
    """Whose keys for masks in pairs are put together: those who masked nothing after all."""
    whole: Mapping[str, Sequence[str]]
    """Who came, of every address that is opened: their own masks are put together."""
    closed: Sequence[str]
    """The addresses that too few came of."""

    @property
    def seeds(self) -> list[tuple[str, str]]:
        """Which own masks are put together: address and client."""
        return [(address, client) for address, own in self.whole.items() for client in own]


@dataclass(frozen=True)
class _Encoded(Kind):
    """Bytes as text."""

    least: int
    most: int

    def fault(self, value: Any) -> str:
        """Return what is wrong with a text of bytes."""
        try:
            size = len(from_text(value)) if isinstance(value, str) else -1
        except ValueError:
            size = -1
        return "" if self.least <= size <= self.most else f"{shown(value)}, which is no key or signature"


KEY, SIGNATURE = _Encoded(32, 32), _Encoded(40, 200)


def answers(task: Task) -> Expected:
    """Return what the answer to one of these steps may be."""
    if task.exchange == KEYS:
        return Expected({"mask": KEY, "seal": KEY, "signature": SIGNATURE})
    if task.exchange == AGREE:
        return Expected({"signature": SIGNATURE})
    if task.exchange == SHARES:
        session = Session.read(task.values["session"])
        return Expected(tensors={"sealed": {"rows": _bytes(len(session.members), session.row(task.client))}})
    keys, seeds = task.values["rows"]
    return Expected(tensors={"shares": {"keys": _bytes(keys, SHARE), "seeds": _bytes(seeds, SHARE)}})


def _bytes(rows: int, width: int) -> Table:
    return Table((rows, width), 0, 255, torch.uint8)


def digest(what: str, plain: Any) -> bytes:
    """Return a hash of plain values, for one purpose."""
    text = json.dumps([f"intarsia secure sums {what}", plain], sort_keys=True)
    return hashlib.sha256(text.encode()).digest()


def to_text(data: bytes) -> str:
    """Return bytes as they travel among plain values."""
    return base64.b64encode(data).decode()


def from_text(text: str) -> bytes:
    """Return bytes that travelled; what are none is a `ValueError`."""
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise ValueError(str(error)) from error
