"""What is hardly meant in a table: clients that look alike, columns that count rows, columns that say the target."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from intarsia.core import warn
from intarsia.data.cells import is_missing, numbers
from intarsia.data.tables import Table

FEWEST = 8
"""From how many rows on a column can be doubted."""


def warn_of_clients(names: Iterable[str]) -> None:
    """Warn of names of clients that differ in capitals or spaces alone."""
    alike: dict[str, list[str]] = {}
    for name in names:
        alike.setdefault("".join(name.casefold().split()), []).append(name)
    for group in (group for group in alike.values() if len(group) > 1):
        shown = " and ".join(f"'{name}'" for name in group)
        warn(
            f"clients {shown} look alike but count as different: write the name in one way where one is meant"
        )


def warn_of_columns(tables: Mapping[str, Table], names: Sequence[str], targets: Sequence[str]) -> None:
    """Warn of columns to learn from, which nobody named, that hold nothing to learn, or the answer itself."""
    answers = [_cells(tables, name) for name in targets]
    for name in names:
        cells = _cells(tables, name)
        if len(cells) < FEWEST or any(map(is_missing, cells)):
            continue
        cure = f'leave it out (population.ignore = ["{name}"]), or name it in population.features if that is meant'
        if _counts(cells):
            warn(f"column '{name}' numbers the rows, and says nothing else: {cure}")
        if any(_says(cells, answer) for answer in answers):
            warn(f"column '{name}' says the target: each of its values goes with one of the target's; {cure}")


def _cells(tables: Mapping[str, Table], name: str) -> list[str]:
    return [cell for table in tables.values() for cell in table.columns.get(name, [""] * len(table))]


def _counts(cells: Sequence[str]) -> bool:
    """Return whether cells are consecutive whole numbers, each once."""
    if len(set(cells)) < len(cells):
        return False
    values, wrong = numbers(cells)
    if len(wrong) or (values != np.round(values)).any():
        return False
    return bool(np.array_equal(np.sort(values), values.min() + np.arange(len(values))))


def _says(cells: Sequence[str], answer: Sequence[str]) -> bool:
    """Return whether values and answers are the same thing in other words: each of one goes with one of the other."""
    pairs, values, said = (len(set(found)) for found in (zip(cells, answer, strict=True), cells, answer))
    return 1 < pairs == values == said < len(cells)
