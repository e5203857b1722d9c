"""Cells of tables: numbers, times and missing values as people write them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Decimal = Literal[".", ","]
MISSING = ("", "nan", "na", "n/a", "n.a.", "#n/a", "none", "null", "nil", "-", "--", "?")
"""What people write where there is no value, in small letters."""
THOUSANDS = {
    ".": re.compile(r"[+-]?\d{1,3}(,\d{3})+(\.\d*)?"),
    ",": re.compile(r"[+-]?\d{1,3}(\.\d{3})+(,\d*)?"),
}
ISO, NUMBER = "iso", "seconds"
DAYS_FIRST = ("%d.%m.%Y", "%d/%m/%Y", "%d-%m-%Y")
MONTHS_FIRST = ("%m/%d/%Y", "%m-%d-%Y")
DATES = ("%Y/%m/%d", "%Y.%m.%d", *DAYS_FIRST, *MONTHS_FIRST)
CLOCKS = ("", " %H:%M", " %H:%M:%S", " %H:%M:%S.%f")
FORMATS = (ISO, NUMBER, *(date + clock for date in DATES for clock in CLOCKS))
"""How times may be written: as ISO 8601, as a number of seconds, or in one of these."""
MILLISECONDS = 1e11
"""Numbers above this (the year 5138 in seconds) are milliseconds."""


def is_missing(cell: str) -> bool:
    """Return whether a cell says that there is no value."""
    return cell.strip().lower() in MISSING


def number(cell: str, decimal: Decimal = ".") -> float | None:
    """Return a cell as a finite number; None if it is none."""
    text = cell.strip()
    if THOUSANDS[decimal].fullmatch(text):
        text = text.replace("," if decimal == "." else ".", "")
    if decimal == ",":
        text = text.replace(".", " ").replace(",", ".")
    try:
        value = float(text) if "_" not in text else float("nan")
    except ValueError:
        return None
    return value if np.isfinite(value) else None


def numbers(cells: Sequence[str]) -> tuple[NDArray[np.float64], list[int]]:
    """Return cells as numbers, NaN where a value is missing, and the places of those that are neither."""
    plain = _plain_numbers(cells)
    if plain is not None:
        return plain, []
    values, wrong = np.full(len(cells), np.nan), []
    for i, cell in enumerate(cells):
        value = number(cell)
        if value is not None:
            values[i] = value
        elif not is_missing(cell):
            wrong.append(i)
    return values, wrong


def _plain_numbers(cells: Sequence[str]) -> NDArray[np.float64] | None:
    """Return cells that are all plain numbers, at once; None where one is anything else."""
    try:
        values = np.asarray(cells, dtype=np.float64)
    except ValueError:
        return None
    return values if np.isfinite(values).all() and not any("_" in cell for cell in cells) else None


def likely_gaps(columns: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """Return words that most likely say that a value is missing: the same one among the numbers of several columns.

    By the word in small letters, as it was first written.
    """
    found: dict[str, str] = {}
    held: Counter[str] = Counter()
    for own in columns.values():
        values, wrong = numbers(own)
        if len(wrong) < np.count_nonzero(~np.isnan(values)):
            words = {own[i].casefold(): own[i] for i in reversed(wrong)}
            found = {**words, **found}
            held.update(words.keys())
    return {word: found[word] for word, count in held.items() if count > 1}


def time(cell: str, form: str) -> float | None:
    """Return a time in seconds since 1970; None if it is not written in this form. Without a zone, it is UTC."""
    text = cell.strip()
    if form == NUMBER:
        value = number(text)
        return value if value is None or abs(value) < MILLISECONDS else value / 1000
    try:
        moment = datetime.fromisoformat(text) if form == ISO else datetime.strptime(text, form)
    except ValueError:
        return None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def times(cells: Sequence[str], form: str) -> tuple[NDArray[np.float64], list[int]]:
    """Return cells as seconds, NaN where a value is missing, and the places of those that are neither."""
    values, wrong = np.full(len(cells), np.nan), []
    for i, cell in enumerate(cells):
        if is_missing(cell):
            continue
        value = time(cell, form)
        if value is None:
            wrong.append(i)
        else:
            values[i] = value
    return values, wrong


def forms_of_time(cells: Sequence[str]) -> list[str]:
    """Return every form in which all of these cells are times; those that are missing do not count."""
    there = list(dict.fromkeys(cell for cell in cells if not is_missing(cell)))
    found = [form for form in FORMATS if there and time(there[0], form) is not None]
    return [form for form in found if all(time(cell, form) is not None for cell in there)]


def look_alike(words: Iterable[str]) -> list[list[str]]:
    """Return groups of words that differ in case, spaces and punctuation alone: most likely one word each."""
    groups: dict[str, list[str]] = {}
    for word in sorted(set(words)):
        groups.setdefault(re.sub(r"[\W_]+", "", word.casefold()), []).append(word)
    return [
        group for key, group in groups.items() if key and len(group) > 1 and not all(map(_is_plain, group))
    ]


def _is_plain(word: str) -> bool:
    return number(word) is not None
