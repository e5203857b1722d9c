"""Devices of clients that do not say theirs: those with the same columns are one device."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from typing import Any

from intarsia.core import warn
from intarsia.data.preparation import Column
from intarsia.data.tables import Table

LONGEST_NAME = 40


def found_devices(
    columns: Mapping[str, tuple[Column, ...]], about: Mapping[str, Mapping[str, Any]]
) -> dict[str, str]:
    """Name the devices of clients that do not say theirs: those with the same columns are one device."""
    silent = {c: tuple(k.name for k in own) for c, own in columns.items() if "device" not in about[c]}
    if len(set(silent.values())) < 2:
        return {}
    return {client: device_of(own) for client, own in silent.items()}


def warn_of_headers(tables: Mapping[str, Table], features: Sequence[str]) -> None:
    """Say that files differ in columns: they may be devices, or a name was written in two ways."""
    first, *others = tables.values()
    for other in others:
        odd = sorted(set(features) & (set(first.columns) ^ set(other.columns)))
        if odd:
            one, without = (first, other) if odd[0] in first.columns else (other, first)
            warn(
                f"{one.source} has a column '{odd[0]}' and {without.source} has none: they are taken for different "
                "devices; if they are not, rename the column, or leave it out (population.ignore)"
            )
            return


def device_of(columns: Sequence[str]) -> str:
    """Name a device by its columns, in the same way wherever it is met."""
    name = "+".join(columns)
    if len(name) <= LONGEST_NAME:
        return name
    return f"{len(columns)} columns {zlib.crc32(name.encode()):08x}"
