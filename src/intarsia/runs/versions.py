"""Which versions a run was played with: `versions.json`, one entry for each set of them that played a part of it."""

from __future__ import annotations

import json
import platform
from importlib.metadata import version
from pathlib import Path

from intarsia._version import __version__
from intarsia.core import write_atomically

VERSIONS = "versions.json"
Versions = dict[str, str]


def note_versions(folder: Path) -> None:
    """Add the versions that are here, if those that played last were others."""
    here = {
        "intarsia": __version__,
        "python": platform.python_version(),
        **{name: version(name) for name in ("torch", "numpy")},
    }
    known = read_versions(folder)
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
