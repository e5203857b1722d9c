"""Run folders below the folders that are watched: nothing outside of these is ever looked at."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from intarsia.core import RunFolderError
from intarsia.experiment.baseline import FOLDER as BASELINE
from intarsia.runs import SETTINGS

DEEPEST = 8
"""How many folders below a watched one runs are looked for."""
MOST_FOLDERS = 20_000
"""How many folders are looked into."""
STATE = "state"
LETTERS = 12
ODD = "is a link, or no plain file: what lies elsewhere is not shown"
"""What is said of such a file in a run folder."""


@dataclass(frozen=True)
class Found:
    """A run folder, and what it is called."""

    key: str
    """In addresses: a hash of the path, so that no address can name anything else."""
    name: str
    path: Path


@dataclass
class Folders:
    """The folders that are watched."""

    roots: Sequence[Path]
    cut: bool = field(default=False, init=False)
    """Whether there are more folders than are looked into."""

    @classmethod
    def of(cls, given: Sequence[Path]) -> Folders:
        """Take the folders that somebody named; one that is not there is an error."""
        for path in given:
            if not path.is_dir():
                what = "is no folder" if path.exists() else "is not there"
                raise RunFolderError(f"{path} {what}: name folders of runs, or folders that hold them")
        return cls(list(dict.fromkeys(path.resolve() for path in given)))

    def runs(self) -> dict[str, Found]:
        """Return the run folders that are there now, by key; links are not followed."""
        self.cut = False
        found: dict[str, Found] = {}
        left = [MOST_FOLDERS]
        for root in self.roots:
            for path in self._below(root, 0, left):
                name = str(path.relative_to(root.parent if path == root or len(self.roots) > 1 else root))
                key = hashlib.sha256(os.fsencode(path)).hexdigest()[:LETTERS]
                found.setdefault(key, Found(key, name, path))
        return found

    def _below(self, folder: Path, depth: int, left: list[int]) -> Iterator[Path]:
        if left[0] <= 0 or depth > DEEPEST:
            self.cut = self.cut or left[0] <= 0
            return
        left[0] -= 1
        names, run = _inside(folder)
        if run:
            yield folder
            names = [name for name in names if name not in (STATE, BASELINE)]
        for name in names:
            yield from self._below(folder / name, depth + 1, left)


def _inside(folder: Path) -> tuple[list[str], bool]:
    """Return the folders in a folder, without links and hidden ones; and whether it is a run's."""
    try:
        with os.scandir(folder) as entries:
            there = {entry.name: entry.is_dir(follow_symlinks=False) for entry in entries}
    except OSError:
        return [], False
    names = sorted(name for name, is_folder in there.items() if is_folder and not name.startswith("."))
    return names, STATE in names and there.get(SETTINGS) is False


def odd_in(folder: Path) -> str:
    """Return the first of a run folder's files that leads elsewhere, or is no file; nothing where there is none."""
    for place in (folder, folder / STATE):
        try:
            with os.scandir(place) as entries:
                odd = sorted(entry.name for entry in entries if not _is_plain(entry))
        except OSError:
            continue
        if odd:
            return str((place / odd[0]).relative_to(folder))
    return ""


def _is_plain(entry: os.DirEntry[str]) -> bool:
    return entry.is_file(follow_symlinks=False) or entry.is_dir(follow_symlinks=False)
