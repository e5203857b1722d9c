"""The ledger of a run's releases: a line each, on disk before anybody can see what was released.

Going on after a kill cuts the run's tables back to the last checkpoint, but never this: what was released stays
released. A round that is played again under the seed's noise gives the very same release, and counts once.
"""

from __future__ import annotations

import json
import os
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from intarsia.core import CheckpointError, naming, sync_folder
from intarsia.trust.accounting import Release

LEDGER = "privacy.jsonl"


class Entry(BaseModel):
    """One release: the sums of an exchange, with their noise."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    draw: str
    """Which draw of clients it was about: releases of one draw are of the same clients."""
    round: Annotated[int, Field(ge=1)]
    exchange: str
    chance: Annotated[float, Field(gt=0, le=1)]
    noise: Annotated[float, Field(gt=0)]
    bound: Annotated[float, Field(gt=0)]
    parts: tuple[str, ...]
    """What it was about: addresses; or clients, where their samples are protected."""


class Ledger:
    """The releases of a run, in its folder."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.entries = self._read()

    def add(self, entry: Entry) -> None:
        """Note a release, for good: it outlives a kill and a power cut once this returns."""
        new = not self.path.exists()
        with naming(self.path), self.path.open("ab") as file:
            file.truncate(self._whole)
            file.write(line := (entry.model_dump_json() + "\n").encode())
            file.flush()
            os.fsync(file.fileno())
        if new:
            sync_folder(self.path.parent)
        self._whole += len(line)
        self.entries.append(entry)

    def _read(self) -> list[Entry]:
        """Return all releases; a last line that was cut short was never released, and goes when the next one comes."""
        data = self.path.read_bytes() if self.path.exists() else b""
        self._whole = data.rfind(b"\n") + 1
        try:
            return [Entry.model_validate(json.loads(line)) for line in data[: self._whole].splitlines()]
        except ValueError as error:
            raise CheckpointError(
                f"{self.path} is damaged, so that nobody can say what was spent: put back a copy of it ({error})"
            ) from error


def spent_by(entries: Sequence[Entry], part: str | None = None) -> Counter[Release]:
    """Return what was released, of all parts or of one.

    Several releases about the same draw of clients count as one with less noise: Gaussians add up so.
    """
    draws: dict[str, dict[str, Entry]] = defaultdict(dict)
    for entry in entries:
        if part is None or part in entry.parts:
            draws[entry.draw][entry.exchange] = entry
    return Counter(_together(list(own.values())) for own in draws.values())


def _together(entries: Sequence[Entry]) -> Release:
    noise = sum(entry.noise**-2 for entry in entries) ** -0.5 if len(entries) > 1 else entries[0].noise
    return Release(entries[0].chance, noise)
