"""Rows of a table that a model is asked about: whose they are, their order, and how far from training's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from intarsia.core import DataError, some
from intarsia.data.cells import forms_of_time
from intarsia.data.preparation import UNKNOWN, Column, Preparation
from intarsia.data.tables import Table

FAR = 10
"""Deviations from the mean of training beyond which a number is hardly one of its kind."""


@dataclass(frozen=True)
class Chosen:
    """The rows of one client, in the order of time, and what is to be said of that."""

    rows: NDArray[np.int64]
    notices: tuple[str, ...] = ()


def chosen(table: Table, preparation: Preparation, client: str) -> Chosen:
    """Return the rows of this client: all, where no column names the clients."""
    kept, notices = np.arange(len(table)), []
    if preparation.client in table.columns:
        kept = _rows_of(table, preparation.client, client)
        others = len(table) - len(kept)
        if others:
            notices.append(f"{others} rows of other clients than '{client}' are left out")
    else:
        notices += _mixed(table, preparation, client)
    if preparation.ordered and preparation.time and preparation.time not in table.columns:
        notices.append(
            f"there is no column '{preparation.time}' with the time: rows are taken in the file's order"
        )
    elif preparation.ordered and preparation.time:
        seconds = _seconds(table.rows(kept), preparation)
        kept = kept[np.argsort(seconds, kind="stable")]
    return Chosen(kept, tuple(notices))


def rows_by_client(table: Table, column: str, known: Sequence[str]) -> dict[str, NDArray[np.int64]]:
    """Return the rows of each client that a table names; one that is not known is refused by its line."""
    found: dict[str, list[int]] = {}
    for row, name in enumerate(table.column(column)):
        found.setdefault(name, []).append(row)
    for name, rows in found.items():
        if name not in known:
            raise DataError(
                f"{table.place(rows[0], column)}: there is no client '{name}'; clients: {some(known)}: put the "
                "name right, leave its rows out, or say whose rows are meant (--client NAME)"
            )
    return {name: np.asarray(rows) for name, rows in found.items()}


def notices_of(raw: NDArray[np.float64], columns: Sequence[Column]) -> Iterator[str]:
    """Say of raw rows which columns hold what training hardly saw: numbers far away, words that it did not know."""
    for at, column in enumerate(columns):
        if column.kind == "words":
            count = int((raw[:, at] == UNKNOWN).sum())
            what = "hold a word that training did not know"
        else:
            scaled = column.kind == "number" and (column.offset, column.scale) != (0.0, 1.0)
            count = int((np.abs(raw[:, at] - column.offset) > FAR * column.scale).sum()) if scaled else 0
            what = (
                f"are more than {FAR} deviations away from the mean of training ({column.offset:.4g}): are they in "
                "the same unit?"
            )
        if count:
            yield f"column '{column.name}': {count} of {len(raw)} rows {what}"


def _rows_of(table: Table, column: str, client: str) -> NDArray[np.int64]:
    names = table.columns[column]
    kept = np.flatnonzero(np.asarray([name == client for name in names]))
    if not len(kept):
        there = list(dict.fromkeys(names))
        raise DataError(
            f"{table.source}: no row is of client '{client}': column '{column}' has {some(there)}; name one of them, "
            "or take the column out if all rows are its own"
        )
    return kept


def _mixed(table: Table, preparation: Preparation, client: str) -> Iterator[str]:
    """Say which column seems to name clients, where the model does not know of one."""
    used = {column.name for column in preparation.columns}
    columns: Mapping[str, Sequence[str]] = {n: c for n, c in table.columns.items() if n not in used}
    for name, cells in columns.items():
        if client in cells and len(set(cells)) > 1:
            on = ", and values are carried on from row to row" if preparation.ordered else ""
            yield f"column '{name}' names others than '{client}', too: all rows are taken as its own{on}"


def _seconds(table: Table, preparation: Preparation) -> NDArray[np.float64]:
    name, form = preparation.time, preparation.time_form
    forms = [form] if form else forms_of_time(table.columns[name])
    if len(forms) != 1:
        raise DataError(
            f"{table.source}: column '{name}' holds no times, or can be read in two ways: write 2024-12-31 23:59:59"
        )
    found = Column(name, "time", form=forms[0]).raw(table, trained=True)
    gaps = np.flatnonzero(np.isnan(found))
    if len(gaps):
        raise DataError(
            f"{table.place(int(gaps[0]), name)}: the time is missing: put it right, or delete the row"
        )
    return found
