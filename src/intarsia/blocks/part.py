"""Parts: small frozen classes whose fields are settings, checked whenever one is made."""

from __future__ import annotations

from typing import TypeVar

from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass
from typing_extensions import dataclass_transform

T = TypeVar("T")


@dataclass_transform(frozen_default=True, field_specifiers=(Field,))
def part(kind: type[T]) -> type[T]:
    """Make a class a part: its annotated fields are settings; an unknown or wrong one is an error."""
    return dataclass(frozen=True, config=ConfigDict(extra="forbid"))(kind)  # type: ignore[return-value]
