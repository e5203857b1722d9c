"""Folders that runs can begin or go on in; locks that keep others out."""

from __future__ import annotations

import time
from pathlib import Path
from typing import IO

from intarsia.core import DRAFTS, RunFolderError
from intarsia.runs.tables import TABLES

try:
    import fcntl
except ImportError:  # no such lock on Windows
    fcntl = None  # type: ignore[assignment]


def is_free(path: Path) -> bool:
    """Whether a run can begin in a folder: empty, but for what one leaves that is killed before it has settings."""
    if not path.exists():
        return True
    own = {"state", "state/lock", "state/blocks", *(f"{table}.jsonl" for table in TABLES)}
    return path.is_dir() and all(
        entry.match(DRAFTS)
        or (entry.relative_to(path).as_posix() in own and (entry.is_dir() or not entry.stat().st_size))
        for entry in path.rglob("*")
    )


PATIENCE = 0.2
"""How many seconds a lock is asked for: who looks whether it is held (`is_locked`) has it for a moment."""


def lock(path: Path, taken: str) -> IO[bytes]:
    """Return a file that keeps others out until it is closed; `taken` is what they are told."""
    file = path.open("wb")
    end = time.monotonic() + PATIENCE
    while not _locked(file):
        if time.monotonic() > end:
            file.close()
            raise RunFolderError(taken)
        time.sleep(PATIENCE / 10)
    return file


def _locked(file: IO[bytes]) -> bool:
    """Take a lock, where there are such; return whether nobody else has it."""
    if fcntl is not None:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


def is_locked(path: Path) -> bool | None:
    """Return whether somebody holds a lock; None where that cannot be told. Nothing is made or changed."""
    if fcntl is None:
        return None
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except FileNotFoundError:
        return False
    except OSError:
        return None
    return False


def set_aside(path: Path) -> None:
    """Rename what cannot be used: somebody may know how to mend it."""
    number = 1
    while (aside := path.with_name(f"{path.name}.unusable-{number}")).exists():
        number += 1
    path.rename(aside)


def refuse_links(path: Path) -> None:
    """Refuse a folder that leads elsewhere: files are cut and removed in it."""
    names = [path / f"{table}.jsonl{packed}" for table in TABLES for packed in ("", ".gz")]
    for entry in (*names, path / "privacy.jsonl", path / "state", *(path / "state").rglob("*")):
        if entry.is_symlink():
            raise RunFolderError(f"{entry} is a link: a run does not go on in a folder that leads elsewhere")
