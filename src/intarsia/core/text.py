"""Texts that others wrote: made harmless before a terminal, a table or a path gets them."""

from __future__ import annotations

import re
from typing import Any

COLOURS = re.compile(r"\x1b\[[0-9;]*m")
UNSEEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""What moves the cursor, changes the screen or the direction of text, or cannot be printed; not tabs and new lines."""


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


def indented(text: str) -> str:
    """Return a text whose further lines stand to the right, so that none of them passes for a message of ours."""
    return harmless(text).replace("\n", "\n  ")


def file_name(name: str) -> str:
    """Return a name as a part of a path: it names something in the folder where it is used, and nothing elsewhere."""
    return re.sub(r"[/\\\x00-\x1f]", "-", name)
