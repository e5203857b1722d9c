"""Preparations fitted to own files: on training rows alone, by client, by device or over all."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from intarsia.core import DataError
from intarsia.data.fitting import Known, Missing, Rule, Sums, added
from intarsia.data.precision import merged_in_float32
from intarsia.data.preparation import Column, Preparation, carried
from intarsia.data.sources.readers import Holding
from intarsia.data.sources.tabular import with_words

Rows = Mapping[str, NDArray[np.int64]]
"""Which rows each split holds."""
ADVICE = 'set population.scale = "standard", or subtract an offset from the column'


@dataclass(frozen=True)
class Fitted:
    """What settings say of preparations; `preparations` fits them."""

    missing: Missing
    scale: str
    scale_by: str
    known: Known
    window: int
    stride: int
    client: str = ""
    """The column that names the client."""
    time: str = ""
    """The column in whose order rows go."""

    def preparations(
        self,
        holdings: Mapping[str, Holding],
        rows: Mapping[str, Rows],
        targets: tuple[Column, ...],
        source: Any,
    ) -> dict[str, Preparation]:
        """Return each client's preparation; archives of which nothing is asked have none."""
        asked = self.scale != "none" or self.missing not in ("refuse", "drop") or self.window > 0
        asked = asked or any(column.scale != 1.0 or column.offset for column in targets)
        for name, own in holdings.items():
            if own.table is None and asked:
                own.columns = _unnamed(name, own)
                own.x = own.x.astype(np.float64)
        self._number_words(holdings, rows)
        self._check_alike(holdings)
        fitted = self._fitted(holdings, rows)
        made = {
            name: Preparation(
                fitted[name],
                self.window,
                self.stride,
                targets,
                self.client,
                self.time,
                holdings[name].time_form,
            )
            for name in rows
            if holdings[name].columns
        }
        if self.scale == "none":
            _check_precision(holdings, made, source)
        return made

    def targets(
        self, names: Sequence[str], holdings: Mapping[str, Holding], rows: Mapping[str, Rows], scale: str
    ) -> tuple[Column, ...]:
        """Return the columns to predict in a regression, scaled over all clients' training rows if asked for."""
        held = [np.asarray(own.y, np.float64).reshape(len(own.y), -1) for own in holdings.values()]
        count = max(y.shape[1] for y in held)
        called = list(names) if len(names) == count else [f"y{i}" for i in range(count)]
        if scale == "none":
            return tuple(Column(name) for name in called)
        rule = Rule("refuse", True, self.known)
        train = {name: np.asarray(own.y, np.float64)[rows[name]["train"]] for name, own in holdings.items()}
        sums = [added(Sums.of(y.reshape(len(y), -1)[:, i]) for y in train.values()) for i in range(count)]
        return tuple(rule.fitted(Column(n), own, "all clients") for n, own in zip(called, sums, strict=True))

    def _number_words(self, holdings: Mapping[str, Holding], rows: Mapping[str, Rows]) -> None:
        """Find the categories of words in all training rows, and put their numbers in place of cells."""
        train = [(own, rows[name]["train"]) for name, own in holdings.items() if own.table is not None]
        wordy = {c.name: c for own in holdings.values() for c in own.columns if c.kind == "words"}
        found = {name: with_words(column, train) for name, column in wordy.items()}
        for own in holdings.values():
            own.columns = tuple(found.get(c.name, c) if c.kind == "words" else c for c in own.columns)
            for i, column in enumerate(own.columns):
                if column.kind == "words" and own.table is not None and column.name in own.table.columns:
                    own.x[:, i] = column.raw(own.table)

    def _check_alike(self, holdings: Mapping[str, Holding]) -> None:
        archives = {own.x.shape[1:] for own in holdings.values() if own.table is None}
        if self.scale != "none" and self.scale_by == "all" and len(archives) > 1:
            raise DataError(
                "population.scale_by: clients' inputs differ in shape, so that they have nothing in common to be "
                'scaled by: set it to "device" or "client"'
            )

    def _fitted(
        self, holdings: Mapping[str, Holding], rows: Mapping[str, Rows]
    ) -> dict[str, tuple[Column, ...]]:
        """Return each client's columns, fitted to the sums of those that it shares them with."""
        rule = Rule(self.missing, self.scale != "none", self.known)
        if not rule.needs_sums:
            return {name: tuple(rule.fitted(c, Sums(), "") for c in holdings[name].columns) for name in rows}
        sums: dict[tuple[str, Column], Sums] = {}
        for name, own in holdings.items():
            for i, column in enumerate(own.columns):
                key = (self._group(name, own), column)
                values = own.x[rows[name]["train"]][..., i]
                sums[key] = sums.get(key, Sums()) + Sums.of(values if column.kind != "words" else values[:0])
        return {
            name: tuple(
                rule.fitted(
                    column, sums[self._group(name, holdings[name]), column], self._whose(name, holdings)
                )
                for column in holdings[name].columns
            )
            for name in rows
        }

    def _group(self, name: str, own: Holding) -> str:
        """Return whose sums a client's columns are fitted to."""
        return {"client": name, "device": str(own.about.get("device", ""))}.get(self.scale_by, "")

    def _whose(self, name: str, holdings: Mapping[str, Holding]) -> str:
        group = self._group(name, holdings[name])
        if self.scale_by == "all":
            return "all clients"
        return f"client '{name}'" if self.scale_by == "client" else f"device '{group or 'default'}'"


def carried_on(
    x: NDArray[Any], prepared: Preparation, stretches: Iterable[NDArray[np.int64]]
) -> NDArray[Any]:
    """Return raw values with missing ones carried on, where that is asked for, within each stretch of rows."""
    if not any(column.carry for column in prepared.columns):
        return x
    found = x.copy()
    flat = found.reshape(len(found), -1)
    for stretch in stretches:
        for i in range(flat.shape[1]):
            flat[stretch, i] = carried(flat[stretch, i])
    return found


def _unnamed(name: str, own: Holding) -> tuple[Column, ...]:
    """Return columns for the arrays of an archive, which have no names."""
    if own.x.ndim < 2:
        raise DataError(
            f"client '{name}': x holds a single number a row; save it as a column (x[:, None]) to have it prepared"
        )
    return tuple(Column(f"x{i}") for i in range(own.x.shape[-1]))


def _check_precision(holdings: Mapping[str, Holding], made: Mapping[str, Preparation], source: Any) -> None:
    """Refuse columns of numbers that float32 cannot tell apart; integers may be names, and stay."""
    alike: dict[tuple[str, ...], list[NDArray[Any]]] = {}
    for name, own in holdings.items():
        if own.x.dtype.kind != "i":
            names = tuple(column.name for column in own.columns)
            alike.setdefault(names, []).append(_filled(own.x, made.get(name)))
    for names, inputs in alike.items():
        merged = merged_in_float32(inputs, ADVICE, names if names and inputs[0].ndim == 2 else ())
        if merged:
            raise DataError(f"{source}: {merged}")


def _filled(x: NDArray[Any], prepared: Preparation | None) -> NDArray[Any]:
    if prepared is None or not np.isnan(x).any():
        return x
    fills = np.asarray([0.0 if column.fill is None else column.fill for column in prepared.columns])
    return np.where(np.isnan(x), fills, x)
