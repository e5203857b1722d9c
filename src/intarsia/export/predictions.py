"""What a model says of new samples: labels with probabilities, or numbers; as rows, and as a table on disk."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from intarsia.core import write_atomically
from intarsia.export.graph import ExportError

PREDICTION = "prediction"


@dataclass(frozen=True)
class Predictions:
    """One prediction a sample, in the order of the samples."""

    places: Mapping[str, Sequence[Any]]
    """Where each sample comes from, by the name of the column: its line, file or number, and its id."""
    labels: Sequence[str]
    """All labels in the order of the probabilities; none in regression."""
    values: NDArray[Any]
    """Probabilities, or predicted numbers: a row a sample."""
    targets: Sequence[str] = ()
    """The names of the predicted numbers, where they have names."""
    unused: Sequence[str] = field(default=())
    """Columns that were there and that the model does not use."""
    notices: Sequence[str] = field(default=())
    """What is to be known of them: rows that were left out, values far from those of training."""

    def __len__(self) -> int:
        return len(self.values)

    @property
    def predicted(self) -> list[Any]:
        """The likeliest label of each sample; in regression its number, or numbers."""
        if self.labels:
            return [self.labels[int(i)] for i in self.values.argmax(1)]
        return [row[0] if len(row) == 1 else row for row in self.values.tolist()]

    def rows(self) -> list[dict[str, Any]]:
        """Return a row a sample; `pandas.DataFrame(predictions.rows())` makes a frame of them."""
        names = self._value_columns()
        best = self.predicted if self.labels else []
        rows = []
        for i, values in enumerate(self.values.tolist()):
            row: dict[str, Any] = {name: column[i] for name, column in self.places.items()}
            row |= {PREDICTION: best[i]} if self.labels else {}
            rows.append(row | dict(zip(names, values, strict=True)))
        return rows

    def _value_columns(self) -> list[str]:
        if self.labels:
            return [f"probability of {label}" for label in self.labels]
        count = self.values.shape[1]
        if len(self.targets) == count:
            return [f"{PREDICTION} of {name}" for name in self.targets]
        return [PREDICTION] if count == 1 else [f"{PREDICTION} {i}" for i in range(1, count + 1)]

    def write(self, path: Path, *, force: bool = False) -> None:
        """Write the rows as a .csv file."""
        if path.is_dir() or (path.exists() and not force):
            raise ExportError(f"{path} is there already: choose another name, or write over it (--force)")
        file, rows = io.StringIO(newline=""), self.rows()
        names = [*self.places, *([PREDICTION] if self.labels else []), *self._value_columns()]
        writer = csv.DictWriter(file, list(dict.fromkeys(names)))
        writer.writeheader()
        writer.writerows({key: _cell(value) for key, value in row.items()} for row in rows)
        write_atomically(path, file.getvalue().encode())


def _cell(value: Any) -> Any:
    return (
        np.format_float_positional(value, 9, fractional=False, trim="-")
        if isinstance(value, float)
        else value
    )
