"""Where data sets are looked for, and where copies of ours are kept."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from intarsia.core import DataError

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
