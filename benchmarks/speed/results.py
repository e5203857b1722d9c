"""The table of results: one row a comparison, kept in a file and updated workload by workload."""

from __future__ import annotations

import json
import os
import platform
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

Row = dict[str, Any]
FIELDS = ("workload", "against", "ratio", "low", "high", "cpu_ratio", "pairs")
"""What every row has; ratio > 1: we are faster."""


@dataclass(frozen=True)
class Results:
    """`results.json`, and beside it what machine it comes from and who could not take part."""

    folder: Path

    @property
    def rows(self) -> list[Row]:
        """All rows."""
        read: list[Row] = _read(self.folder / "results.json", [])
        return read

    @property
    def circumstances(self) -> dict[str, Any]:
        """The machine, and the reason for every contestant that was left out."""
        read: dict[str, Any] = _read(self.folder / "circumstances.json", {})
        return read

    def put(self, rows: Iterable[Row]) -> None:
        """Put rows in, each in place of an earlier one of the same workload and opponent."""
        kept = {(row["workload"], row["against"]): row for row in self.rows}
        for row in rows:
            missing = [field for field in FIELDS if field not in row]
            if missing:
                raise ValueError(f"a row has no {', '.join(missing)}: {row}")
            kept[row["workload"], row["against"]] = row
        self._write("results.json", list(kept.values()))

    def note(self, workload: str, skipped: Mapping[str, str], seconds: float | None = None) -> None:
        """Note the machine, who was left out of a workload and why, and how long it took against everyone."""
        known = self.circumstances
        left_out, took = known.get("skipped", {}), known.get("seconds", {})
        reasons = left_out.get(workload, {}) | {name: _neutral(reason) for name, reason in skipped.items()}
        measured = {row["against"] for row in self.rows if row["workload"] == workload}
        left_out[workload] = {name: reason for name, reason in reasons.items() if name not in measured}
        if seconds is not None:
            took[workload] = round(seconds)
        machine = {
            "cores": len(os.sched_getaffinity(0)),
            "architecture": platform.machine(),
            "python": platform.python_version(),
            "torch": torch.__version__.partition("+")[0],
        }
        self._write("circumstances.json", {**machine, "seconds": took, "skipped": left_out})

    def _write(self, name: str, content: Any) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        whole = self.folder / f"{name}.new"
        whole.write_text(json.dumps(content, indent=1) + "\n")
        whole.replace(self.folder / name)


def _neutral(reason: str) -> str:
    """Return a reason without addresses and folders, which say something of this machine only."""
    return re.sub(r"\w+://\S+|(?<!\S)['\"(]?/\S+", "...", reason)


def _read(path: Path, default: Any) -> Any:
    return json.loads(path.read_text()) if path.exists() else default
