"""Getting a data set's public files, only when asked to."""

from __future__ import annotations

import hashlib
import http.client
import shutil
import tarfile
import tempfile
import urllib.request
from collections.abc import Callable
from pathlib import Path

from intarsia.core import DataError
from intarsia.data.datasets import Dataset, Download, download_folder

Progress = Callable[[str, int, int], None]
"""Told the file, the bytes so far, and the bytes in all (0: unknown)."""
TIMEOUT = 30


def download(dataset: Dataset, progress: Progress = lambda *_: None) -> Path:
    """Fetch the files, check and unpack them; return their folder. Nothing is left half-done."""
    if not dataset.downloads:
        raise DataError(
            f"data set '{dataset.name}' has no public address to fetch from; "
            f"see {dataset.published_at or 'its authors'}, and put its files into {download_folder(dataset)}"
        )
    folder = download_folder(dataset)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".draft-") as draft:
        for path in [_fetch(item, Path(draft), progress) for item in dataset.downloads]:
            _place(path, folder)
    return folder


def _fetch(item: Download, draft: Path, progress: Progress) -> Path:
    path, digest, done = draft / item.file, hashlib.md5(usedforsecurity=False), 0
    try:
        with urllib.request.urlopen(item.url, timeout=TIMEOUT) as source, path.open("wb") as file:
            size = int(source.headers.get("Content-Length") or 0)
            while chunk := source.read(1 << 20):
                file.write(chunk)
                digest.update(chunk)
                done += len(chunk)
                progress(item.file, done, size)
    except (OSError, ValueError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", error)
        raise DataError(
            f"cannot fetch {item.url}: {reason}. Without internet, put the file into the data folder by hand"
        ) from error
    if digest.hexdigest() != item.md5:
        raise DataError(f"{item.url} came damaged: its md5 is {digest.hexdigest()}, it should be {item.md5}")
    return path


def _place(path: Path, folder: Path) -> None:
    """Unpack an archive beside itself, then move what came of it into the folder."""
    folder.mkdir(exist_ok=True)
    if path.name.endswith(".tar.gz"):
        inside = path.parent / "inside"
        with tarfile.open(path) as archive:
            archive.extractall(inside, filter="data")
        for entry in inside.iterdir():
            shutil.rmtree(folder / entry.name, ignore_errors=True)
            shutil.move(entry, folder / entry.name)
    else:
        path.replace(folder / path.name)
