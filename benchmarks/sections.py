"""Records of commands that go on where they were stopped: a JSON file of named sections, a line an entry."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from intarsia.core import write_atomically


def read(path: Path) -> dict[str, Any]:
    """Return a record; an empty one if there is none yet."""
    return dict(json.loads(path.read_text())) if path.exists() else {}


def update(path: Path, **sections: Any) -> None:
    """Put sections into a record; the others stay."""
    record = {**read(path), **sections}
    parts = [f"{json.dumps(name)}: {_lines(section)}" for name, section in record.items()]
    write_atomically(path, ("{\n" + ",\n".join(parts) + "\n}\n").encode())


def _lines(section: Any) -> str:
    """Write a section with a line an entry."""
    if isinstance(section, Mapping) and section:
        return "{\n" + ",\n".join(f" {json.dumps(k)}: {json.dumps(v)}" for k, v in section.items()) + "\n}"
    if isinstance(section, list) and section:
        return "[\n" + ",\n".join(f" {json.dumps(entry)}" for entry in section) + "\n]"
    return json.dumps(section)
