"""Which versions a run was played with: `versions.json`, one entry for each set of them that played a part of it."""

from __future__ import annotations

import json
from pathlib import Path

from intarsia.core import Versions, versions_here, write_atomically

VERSIONS = "versions.json"


def note_versions(folder: Path) -> None:
    """Add the versions that are here, if those that played last were others."""
    here, known = versions_here(), read_versions(folder)
    if known[-1:] != [here]:
        write_atomically(folder / VERSIONS, json.dumps([*known, here], indent=1).encode())


def read_versions(folder: Path) -> list[Versions]:
    """Return the versions that played a run, in their order; none where they were not noted, or are not readable."""
    try:
        noted = json.loads((folder / VERSIONS).read_bytes())
    except (OSError, ValueError):
        return []
    entries = noted if isinstance(noted, list) else []
    return [{str(key): str(own) for key, own in e.items()} for e in entries if isinstance(e, dict)]
