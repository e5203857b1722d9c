"""Files that are there whole or not at all, after a kill and after a power cut."""

from __future__ import annotations

import os
import threading
from collections.abc import Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path

DRAFTS = ".*.draft"
"""What files are called while they are being written."""
SYNCS_AT_ONCE = 8


def write_atomically(path: Path, *data: bytes | memoryview) -> None:
    """Write a file, of one piece or more, so that it is there whole or not at all; once this returns, for good."""
    make_folder(path.parent)
    with replacing(path, *data) as draft:
        _sync(draft)


@contextmanager
def replacing(path: Path, *data: bytes | memoryview) -> Iterator[Path]:
    """Write a draft, to be synced within, with all that the file names; then put it in the file's place, for good."""
    with _draft(path, data) as draft:
        yield draft
    _sync(path.parent)


def write_unsynced(path: Path, *data: bytes | memoryview) -> None:
    """Write a file so that a kill leaves it whole or not at all; for a power cut, `sync` it before it is named."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with _draft(path, data):
        pass


def sync(files: Collection[Path], entered: Collection[Path] = ()) -> None:
    """Let files, with their entries in their folders, outlive a power cut; some (`entered`) have theirs for good.

    Side by side: the disk then writes for many at once, which takes a fraction of the time of one after the other.
    """
    list(_threads(os.getpid()).map(_sync, [*files, *entered, *{path.parent for path in files}]))


@lru_cache(maxsize=1)
def _threads(process: int) -> ThreadPoolExecutor:
    """Return the threads of this process that sync files: they stay, as to start them takes longer than most syncs."""
    return ThreadPoolExecutor(SYNCS_AT_ONCE, "intarsia-syncing")


def sync_folder(folder: Path) -> None:
    """Let what was made, renamed or removed in a folder outlive a power cut."""
    _sync(folder)


def make_folder(path: Path) -> None:
    """Make a folder, and those above it that are missing, for good."""
    if path.is_dir():
        return
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    path.mkdir(parents=True, exist_ok=True)
    for folder in missing:
        _sync(folder.parent)


def clear_drafts(folder: Path) -> None:
    """Remove what a writer left that was killed; nobody may be writing now."""
    for draft in folder.rglob(DRAFTS):
        draft.unlink(missing_ok=True)


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Let an error of the system say which file it is about: writing to an open one does not (a full disk)."""
    try:
        yield
    except OSError as error:
        error.filename = error.filename or str(path)
        raise


@contextmanager
def _draft(path: Path, data: Collection[bytes | memoryview]) -> Iterator[Path]:
    """Write a file under the name of a draft, and rename it in the end; after an error nothing of it is left."""
    draft = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_native_id()}.draft")
    try:
        with naming(path), draft.open("wb") as file:
            file.writelines(data)
        yield draft
        os.replace(draft, path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise


def _sync(path: Path) -> None:
    if os.name == "nt" and path.is_dir():  # it has no such thing, and needs none
        return
    with naming(path):
        opened = os.open(path, os.O_RDWR if os.name == "nt" else os.O_RDONLY)
        try:
            os.fsync(opened)
        finally:
            os.close(opened)
