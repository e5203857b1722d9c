"""Plain values that others sent: read, and checked, so that only errors of ours come out."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from intarsia.core import WireError

DEPTH = 16
"""How deep plain values may be nested."""
LARGEST = 2**53
"""The largest whole number that may travel: JSON's readers agree on no larger one."""

Model = TypeVar("Model", bound=BaseModel)
TEXT = 1 << 16
Text = Annotated[str, Field(max_length=TEXT)]
Name = Annotated[str, Field(min_length=1, max_length=1000)]
Hash = Annotated[str, Field(pattern="^[0-9a-f]{32}$")]
Count = Annotated[int, Field(ge=0, le=LARGEST)]


class Message(BaseModel):
    """What a message may say: these fields and no others, of exactly these types, in these ranges."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


def read_json(data: bytes | str, what: str) -> dict[str, Any]:
    """Read a table; what is none, is nested too deep or names a key twice is an error."""
    try:
        table = json.loads(data, object_pairs_hook=_table)
        if (b"\\u" if isinstance(data, bytes) else "\\u") in data:  # type: ignore[operator]
            json.dumps(table, ensure_ascii=False).encode()  # half a letter cannot be written down again
    except (ValueError, RecursionError) as error:
        raise WireError(f"{what} is damaged: {_short(error)}") from error
    if not isinstance(table, dict):
        raise WireError(f"{what} is no table")
    return table


def read_as(kind: type[Model], table: Any, what: str) -> Model:
    """Read a message of a kind; the first thing that is wrong with it is named."""
    try:
        return kind.model_validate(table)
    except ValidationError as error:
        problem = error.errors(include_url=False, include_context=False)[0]
        place = ".".join(str(step)[:80] for step in problem["loc"])
        got = "" if problem["type"] == "missing" else f" (got {shown(problem['input'])})"
        raise WireError(f"{what}: {place}: {problem['msg'].lower()}{got}") from None


def check_plain(value: Any, what: str, depth: int = 0) -> None:
    """Refuse what cannot be written down and read again everywhere: huge or endless numbers, broken text."""
    if depth > DEPTH:
        raise WireError(f"{what} is nested deeper than {DEPTH} times")
    if isinstance(value, Mapping):
        for key, own in value.items():
            check_plain(key, what, depth + 1)
            check_plain(own, what, depth + 1)
    elif isinstance(value, (list, tuple)):
        for own in value:
            check_plain(own, what, depth + 1)
    elif not _is_plain(value):
        raise WireError(f"{what} holds {shown(value)}")


def shown(value: Any) -> str:
    """Return a value as it can be put into a sentence, whatever it is."""
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) > LARGEST:
        return f"a whole number of {value.bit_length()} bits"
    if isinstance(value, (dict, list)) and len(value) > 3:
        return f"a {type(value).__name__} of {len(value)}"
    try:
        return repr(value)[:80].encode("ascii", "backslashreplace").decode()
    except (ValueError, RecursionError):
        return f"a {type(value).__name__}"


def _is_plain(value: Any) -> bool:
    if value is None or isinstance(value, bool):
        return True
    if isinstance(value, int):
        return abs(value) <= LARGEST
    if isinstance(value, float):
        return math.isfinite(value)
    return isinstance(value, str) and not any("\ud800" <= letter <= "\udfff" for letter in value)


def _table(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) < len(pairs):
        raise ValueError("a key is there twice")
    return table


def _short(error: Exception) -> str:
    return str(error)[:200]
