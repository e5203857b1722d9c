"""The record of a study: what every run gave, from which settings, with which versions; documents are made from it."""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

from intarsia.core import DataError, write_atomically
from intarsia.papers.study import Place

PACKAGES = ("intarsia", "torch", "numpy", "scikit-learn")


def versions() -> dict[str, str]:
    """Return what the figures may depend on."""
    return {"python": platform.python_version(), **{name: version(name) for name in PACKAGES}}


@dataclass(frozen=True)
class Entry:
    """One run of a study."""

    run: str
    seed: int
    settings: str
    """A hash of the settings, as in the run folder's name."""
    metrics: str
    """The first digits of the SHA-256 of `metrics.jsonl`: who repeats the run has the same."""
    values: list[tuple[str, str, float]]
    """Row, column and figure."""


@dataclass
class Record:
    """All runs of a study at a scale."""

    study: str
    scale: str
    command: str = ""
    """What writes it."""
    remark: str = ""
    """What must be said with every figure."""
    versions: Mapping[str, str] = field(default_factory=versions)
    entries: list[Entry] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)

    def add(self, run: str, seed: int, folder: Path, values: Mapping[Place, float]) -> None:
        """Take what was read from one run."""
        digest = hashlib.sha256((folder / "metrics.jsonl").read_bytes()).hexdigest()[:16]
        rows = [(row, column, value) for (row, column), value in values.items()]
        self.entries.append(Entry(run, seed, folder.name.rpartition("-")[2], digest, rows))

    def write(self, path: Path) -> None:
        """Write it, a line a run."""
        about = {key: value for key, value in asdict(self).items() if key != "entries"}
        lines = [json.dumps(asdict(entry)) for entry in self.entries]
        text = json.dumps(about, indent=1)[:-2] + ',\n "entries": [\n' + ",\n".join(lines) + "\n ]\n}\n"
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, text.encode())


def read_record(path: Path) -> Record:
    """Return a record that was written."""
    content: dict[str, Any] = json.loads(path.read_text())
    entries = [
        Entry(**{**entry, "values": [tuple(value) for value in entry["values"]]})
        for entry in content.pop("entries")
    ]
    return Record(**content, entries=entries)


def by_seed(records: Iterable[Record]) -> dict[Place, dict[int, float]]:
    """Return every place's figures by seed; two records that say different things of one are refused."""
    found: dict[Place, dict[int, float]] = {}
    for record in records:
        for entry in record.entries:
            for row, column, value in entry.values:
                if found.setdefault((row, column), {}).setdefault(entry.seed, value) != value:
                    raise DataError(
                        f"records of '{record.study}' disagree about {row}, {column} with seed {entry.seed}: "
                        "take out the older one"
                    )
    return found
