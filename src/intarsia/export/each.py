"""A table of several clients: each row is predicted with its own client's model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from intarsia.core import DataError, SettingsError, some
from intarsia.data.preparation import Preparation, Prepared
from intarsia.data.tables import TABLES, Table, read_table
from intarsia.export.predictions import Predictions
from intarsia.export.predictor import Predictor
from intarsia.export.rows import rows_by_client


def predict_each(
    samples: str | Path,
    preparations: Mapping[str, Prepared | None],
    model_of: Callable[[str], Predictor],
    identity: str = "",
) -> Predictions:
    """Predict for a table that names the client of each row; `preparations` is what each client's model takes."""
    columns = [own.client for own in preparations.values() if isinstance(own, Preparation) and own.client]
    path = Path(samples)
    table = read_table(path) if path.suffix.lower() in TABLES and path.exists() else None
    column = next((name for name in columns if table is not None and name in table.columns), "")
    if table is None or not column:
        absent = f" (the table has no column '{columns[0]}')" if columns and table is not None else ""
        raise SettingsError(f"say whose model: --client NAME{absent}; clients: {some(list(preparations))}")
    found = {
        name: model_of(name).of_table(table.rows(rows), identity)
        for name, rows in rows_by_client(table, column, list(preparations)).items()
    }
    return _together(found, table, column)


def _together(found: Mapping[str, Predictions], table: Table, column: str) -> Predictions:
    """Return the predictions of several clients as one, in the order of the file."""
    first = next(iter(found.values()))
    for name, own in found.items():
        if (list(own.labels), list(own.targets)) != (list(first.labels), list(first.targets)):
            raise DataError(
                f"{table.source}: client '{name}' predicts something else than '{next(iter(found))}': predict for "
                "one at a time (--client NAME)"
            )
    joined: dict[str, list[Any]] = {
        name: [cell for own in found.values() for cell in own.places[name]] for name in first.places
    }
    joined[column] = [name for name, own in found.items() for _ in range(len(own))]
    order = np.argsort(np.asarray(joined["line"]), kind="stable")
    used = [set(own.unused) for own in found.values()]
    return Predictions(
        {name: [cells[i] for i in order] for name, cells in joined.items()},
        first.labels,
        np.concatenate([own.values for own in found.values()])[order],
        first.targets,
        [name for name in table.header if all(name in own for own in used)],
        [f"client '{name}': {notice}" for name, own in found.items() for notice in own.notices],
    )
