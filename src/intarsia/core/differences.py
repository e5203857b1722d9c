"""What differs between two tables of plain values, by dotted name: to say it, not only that something does."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

ABSENT = "nothing"
"""What a table has where it has no such name."""
SHOWN = 4
"""How many differences a text names."""


def differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Return what differs, by dotted name: the value before and the value after."""
    old, new = _flat(before), _flat(after)
    names = [*old, *(name for name in new if name not in old)]
    pairs = {name: (old.get(name, ABSENT), new.get(name, ABSENT)) for name in names}
    return {name: (was, now) for name, (was, now) in pairs.items() if was != now}


def in_figures(found: Mapping[str, tuple[Any, Any]]) -> str:
    """Return differences as text: `training.lr: 0.1, now 0.2`; of many, the first."""
    texts = [f"{name}: {_shown(was)}, now {_shown(now)}" for name, (was, now) in found.items()]
    more = [f"{len(texts) - SHOWN} more"] if len(texts) > SHOWN else []
    return "; ".join([*texts[:SHOWN], *more])


def _shown(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _flat(table: Mapping[str, Any], place: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in table.items():
        if isinstance(value, Mapping) and value:
            found |= _flat(value, f"{place}{key}.")
        else:
            found[f"{place}{key}"] = value
    return found
