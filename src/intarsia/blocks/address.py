"""Where a block lives: `block@group`; one that was restarted, `block@group@1` and so on."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import lru_cache

from intarsia.core import AddressError

ME = "me"
ALL = "all"


@dataclass(frozen=True, order=True)
class Address:
    """A block and the group that shares it; `@me` never leaves the client."""

    block: str
    group: str
    begun: int = 0
    """How often the block was begun anew: what is known of one, and what codecs lost of it, is not the next one's."""

    def __post_init__(self) -> None:
        for part in (self.block, self.group):
            if not part or "@" in part:
                raise AddressError(
                    f"'{self.block}@{self.group}' is no address: write block@group, "
                    "both parts non-empty and without '@'"
                )

    @classmethod
    def parse(cls, text: str) -> Address:
        """Read `block@group`."""
        return _parsed(text)

    @classmethod
    def _read(cls, text: str) -> Address:
        parts = re.fullmatch("([^@]+)@([^@]+)(?:@([1-9][0-9]{0,8}))?", text)
        if parts is None:
            raise AddressError(f"'{text}' is no address: write block@group, for example base@all")
        return cls(parts[1], parts[2], int(parts[3] or 0))

    @property
    def original(self) -> Address:
        """Where the block lived before it was ever restarted."""
        return replace(self, begun=0)

    def anew(self) -> Address:
        """Return the address of the block when it begins anew."""
        return replace(self, begun=self.begun + 1)

    @property
    def private(self) -> bool:
        """Whether the block stays with its client."""
        return self.group == ME

    def __str__(self) -> str:
        return f"{self.block}@{self.group}" + (f"@{self.begun}" if self.begun else "")


@lru_cache(maxsize=4096)
def _parsed(text: str) -> Address:
    """Return the address of a text: the same few come with every message."""
    return Address._read(text)
