"""Which versions a run was played with: `versions.json`, one entry for each set of them that played a part of it."""

from __future__ import annotations

import json
from pathlib import Path

from intarsia.core import Versions, versions_here, write_atomically

VERSIONS, ARITHMETIC = "versions.json", "arithmetic"


def note_versions(folder: Path) -> None:
    """Add the versions that are here, if those that played last were others."""
    here, known = versions_here(), read_versions(folder)
    if not known or {**known[-1], **here} != known[-1]:
        _write(folder, [*known, here])


def note_arithmetic(folder: Path, kind: str) -> str:
    """Add by what kind of machine a run is played from here on; return the one before, if it was another."""
    known = read_versions(folder)
    before = next((entry[ARITHMETIC] for entry in reversed(known) if ARITHMETIC in entry), kind)
    last = known[-1] if known else {}
    if last.get(ARITHMETIC) != kind:
        _write(folder, [*(known if ARITHMETIC in last else known[:-1]), {**last, ARITHMETIC: kind}])
    return before if before != kind else ""


def _write(folder: Path, entries: list[Versions]) -> None:
    write_atomically(folder / VERSIONS, json.dumps(entries, indent=1).encode())


def read_versions(folder: Path) -> list[Versions]:
    """Return the versions that played a run, in their order; none where they were not noted, or are not readable."""
    try:
        noted = json.loads((folder / VERSIONS).read_bytes())
    except (OSError, ValueError):
        return []
    entries = noted if isinstance(noted, list) else []
    return [{str(key): str(own) for key, own in e.items()} for e in entries if isinstance(e, dict)]
