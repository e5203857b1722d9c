"""Texts: others' made harmless before a terminal, a table or a path gets them; numbers and differences in words."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

COLOURS = re.compile(r"\x1b\[[0-9;]*m")
UNSEEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""What moves the cursor, changes the screen or the direction of text, or cannot be printed; not tabs and new lines."""

PLACE = re.compile(
    r"""(?P<quote>['"])(?:[A-Za-z]:)?[/\\][^'"\n]*(?P=quote)|(?<![\w.:/\\])(?:[A-Za-z]:)?(?:[/\\][^\s/\\'":,;()<>|]+){2,}"""
)
"""A whole path: in quotes, or as long as there is no space in it."""


def without_paths(text: str) -> str:
    """Return a text that may leave this machine: whole paths are `...`, but for the names of Python files."""

    def short(found: re.Match[str]) -> str:
        quote, name = found["quote"] or "", re.split(r"[/\\]", found[0].strip("'\""))[-1]
        return f"{quote}{name if name.endswith('.py') else '...'}{quote}"

    return PLACE.sub(short, text)


def harmless(text: str) -> str:
    r"""Return a text without colours, in which everything that a terminal would obey stands as `\x1b` or the like."""
    return UNSEEN.sub(lambda found: found[0].encode("unicode_escape").decode(), COLOURS.sub("", text))


def harmless_values(value: Any) -> Any:
    """Return plain values (as JSON has them) with every text in them made harmless."""
    if isinstance(value, str):
        return harmless(value)
    if isinstance(value, dict):
        return {harmless(str(key)): harmless_values(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [harmless_values(entry) for entry in value]
    return value


def flat(table: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """Return a table of tables as one, by dotted names."""
    found: dict[str, Any] = {}
    for key, value in table.items():
        found |= flat(value, f"{before}{key}.") if isinstance(value, Mapping) else {f"{before}{key}": value}
    return found


def indented(text: str) -> str:
    """Return a text whose further lines stand to the right, so that none of them passes for a message of ours."""
    return harmless(text).replace("\n", "\n  ")


def file_name(name: str) -> str:
    """Return a name as a part of a path: it names something in the folder where it is used, and nothing elsewhere."""
    return re.sub(r"[/\\\x00-\x1f]", "-", name)


def percent(share: float | None) -> str:
    """Return 0.123 as 12.3 %."""
    return "-" if share is None else f"{100 * share:.1f} %"


def mean_and_std(mean: float | None, std: float | None, measure: str) -> str:
    """Return an accuracy as 93.1 ± 0.4 %, a loss as 0.123 ± 0.010; the mean alone without a deviation."""
    if mean is None:
        return "-"
    factor, digits, unit = (100, 1, " %") if measure == "accuracy" else (1, 3, "")
    more = "" if std is None else f" ± {factor * std:.{digits}f}"
    return f"{factor * mean:.{digits}f}{more}{unit}"


def size(count: float) -> str:
    """Return bytes with a unit (1 kB = 1000 bytes)."""
    for unit in ("B", "kB", "MB", "GB"):
        if abs(count) < 1000:
            return f"{count:.0f} B" if unit == "B" else f"{count:.2f} {unit}"
        count /= 1000
    return f"{count:.2f} TB"


def lasting(seconds: float) -> str:
    """Return seconds as 0.25 s or 4.1 s where they are few, and else as `duration` does."""
    return f"{seconds:.2g} s" if seconds < 9.95 else duration(seconds)


def duration(seconds: float) -> str:
    """Return seconds as 40 s, 3 min or 1.5 h."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


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
