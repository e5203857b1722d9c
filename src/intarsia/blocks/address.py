"""Where a block lives: `block@group`."""

from __future__ import annotations

from dataclasses import dataclass

from intarsia.core import AddressError

ME = "me"
ALL = "all"


@dataclass(frozen=True, order=True)
class Address:
    """A block and the group that shares it; `@me` never leaves the client."""

    block: str
    group: str

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
        block, sign, group = text.partition("@")
        if not sign:
            raise AddressError(f"'{text}' is no address: write block@group, for example base@all")
        return cls(block, group)

    @property
    def private(self) -> bool:
        """Whether the block stays with its client."""
        return self.group == ME

    def __str__(self) -> str:
        return f"{self.block}@{self.group}"
