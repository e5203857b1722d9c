"""Settings of one method that are changed to another: what the new one does not have is left out, and named."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from intarsia.core import warn
from intarsia.methods import MERGES, METHODS, SHARINGS
from intarsia.training import OBJECTIVES

KINDS: dict[str, Mapping[str, type]] = {"sharing": SHARINGS, "objective": OBJECTIVES, "merge": MERGES}


Table = Mapping[str, Any]


def refitted(before: Table, change: Callable[[Table], dict[str, Any]]) -> dict[str, Any]:
    """Return changed settings; where the changes name another method, without what this one does not have.

    Changes themselves are never left out. A method that is not known (yet) leaves all as it is.
    """
    after = change(before)
    old, new = _name(before, "method"), _name(after, "method")
    usual = _parts(new) if old != new else {}
    if not usual:
        return after
    fits = {place: _fitting(place, before, after, usual, _parts(old)) for place in KINDS if place in before}
    fits["method"] = {k: v for k, v in _table(before, "method").items() if k in _fields(METHODS[new])}
    result = change({**before, **fits})
    _tell(old, new, [f"{place}.{key}" for place in fits for key in _lost(place, before, after, result)])
    return result


def _tell(old: str, new: str, lost: Sequence[str]) -> None:
    if lost:
        warn(
            f"the settings are of method '{old}', and '{new}' is asked for, which has no such settings; they are left "
            f"out: {', '.join(lost)}"
        )


def _lost(place: str, before: Table, after: Table, result: Table) -> list[str]:
    """Return the settings of a part that neither the changes nor the new method have."""
    there, now = _table(after, place), _table(result, place)
    return [key for key in _table(before, place) if key in there and key not in now and key != "name"]


def _fitting(
    place: str,
    before: Table,
    after: Table,
    usual: Table,
    old: Table,
) -> dict[str, Any]:
    """Return those settings of a part that the new method's has; a part that was chosen by name stays as it is."""
    table, now = _table(before, place), _name(after, place)
    named = "name" in table and now == table["name"]
    if named and not (place in old and old[place].name == now):
        return table
    kind = KINDS[place].get(now) if now and not named else type(usual[place])
    return {key: value for key, value in table.items() if key in _fields(kind)} if kind else table


def _parts(method: str) -> dict[str, Any]:
    """Return a method's usual parts (none: it is not known, or needs settings)."""
    try:
        made = METHODS[method]() if method in METHODS else None
    except ValidationError:
        return {}
    return {place: getattr(made, place) for place in KINDS} if made else {}


def _fields(kind: type) -> set[str]:
    return {field.name for field in dataclasses.fields(kind)}


def _table(settings: Table, place: str) -> dict[str, Any]:
    said = settings.get(place)
    return dict(said) if isinstance(said, Mapping) else {"name": said} if isinstance(said, str) else {}


def _name(settings: Table, place: str) -> str:
    usual = "fedavg" if place == "method" else ""
    return str(_table(settings, place).get("name", usual))
