"""Where data sets are looked for, and where copies of ours are kept, decoded, as arrays that are mapped, not read."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from intarsia.core import DataError
from intarsia.data.raw import RawData, Recording, Recordings

Places = tuple[Path, ...]


def cache_folder() -> Path:
    """Return the user's cache folder (`INTARSIA_CACHE`, or the usual one of the system)."""
    named = os.environ.get("INTARSIA_CACHE")
    if named:
        return Path(named)
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA", Path.home() / "AppData" / "Local")) / "intarsia"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "intarsia"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "intarsia"


def places(folder: str | Path = "") -> Places:
    """Return the folders to look into: the one named, `INTARSIA_DATA`, the cache, `../shared/data`."""
    shared = Path("..") / "shared" / "data"
    checkout = Path(__file__).parents[3]
    if folder and not Path(folder).is_dir():
        raise DataError(f"the data folder {folder} does not exist")
    named = [Path(folder)] if folder else []
    environment = [Path(os.environ["INTARSIA_DATA"])] if os.environ.get("INTARSIA_DATA") else []
    beside = [shared] + ([checkout / shared] if (checkout / "pyproject.toml").exists() else [])
    return (*named, *environment, cache_folder() / "data", *(p.resolve() for p in beside))


D = TypeVar("D")
FORMAT = 2


def cached(name: str, files: Sequence[Path], read: Callable[[], D]) -> D:
    """Return what `read` gives; from the cache if these files were decoded before."""
    folder = cache_folder() / "decoded" / f"{name}-{_fingerprint(files)}"
    if (folder / "about.json").exists():
        try:
            return _load(folder)  # type: ignore[no-any-return]
        except (OSError, ValueError, KeyError, EOFError):
            shutil.rmtree(folder, ignore_errors=True)
    data = read()
    if isinstance(data, RawData | Recordings) and _save(data, folder):
        return _load(folder)  # type: ignore[no-any-return]
    return data


def _fingerprint(files: Sequence[Path]) -> str:
    about = [(str(p.resolve()), p.stat().st_size, p.stat().st_mtime_ns) for p in files]
    return hashlib.sha256(json.dumps([FORMAT, about]).encode()).hexdigest()[:16]


def _save(data: RawData | Recordings, folder: Path) -> bool:
    """Write the arrays into a folder that appears whole; without room or permission there is no cache."""
    arrays, about = _flat(data)
    draft: str | None = None
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        draft = tempfile.mkdtemp(dir=folder.parent, prefix=".draft-")
        for name, array in arrays.items():
            np.save(Path(draft) / f"{name}.npy", array)
        (Path(draft) / "about.json").write_text(json.dumps(about))
        os.rename(draft, folder)
    except OSError:
        if draft is not None:
            shutil.rmtree(draft, ignore_errors=True)
        return (folder / "about.json").exists()
    return True


def _flat(data: RawData | Recordings) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
    if isinstance(data, RawData):
        arrays = {"x": data.x, "y": data.y, "train": data.train}
        if data.natural is not None:
            arrays["natural"] = data.natural
        return arrays, {"kind": "samples", "labels": data.labels, "overlapping": data.overlapping}
    arrays = {
        "x": np.concatenate([r.signal for r in data.items]),
        "y": np.concatenate([r.y for r in data.items]),
        "lengths": np.asarray([len(r.y) for r in data.items]),
        "subjects": np.asarray([r.subject for r in data.items]),
    }
    return arrays, {"kind": "recordings", "labels": data.labels, "rate": data.rate}


def _load(folder: Path) -> Any:
    about = json.loads((folder / "about.json").read_text())
    arrays = {p.stem: np.load(p, mmap_mode="r", allow_pickle=False) for p in folder.glob("*.npy")}
    labels = tuple(about["labels"])
    if about["kind"] == "samples":
        more = (arrays.get("natural"), about["overlapping"])
        return RawData(arrays["x"], arrays["y"], labels, arrays["train"], *more)
    ends = np.cumsum(arrays["lengths"])
    items = [
        Recording(arrays["x"][end - n : end], arrays["y"][end - n : end], int(subject))
        for end, n, subject in zip(ends, arrays["lengths"], arrays["subjects"], strict=True)
    ]
    return Recordings(items, labels, about["rate"])
