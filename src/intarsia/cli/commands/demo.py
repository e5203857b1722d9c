"""The demonstration: five methods on the same data."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    pass

DEMO_FOLDER = Path("runs/demo")
DEMO_MARK = ".intarsia-demo"
DEMO_METHODS = ("local", "fedavg", "fedprox", "fedper", "modfl")


def clear_demo(out: Path) -> None:
    """Remove what an earlier demonstration left."""
    from intarsia.core import RunFolderError

    if out.exists() and any(out.iterdir()):
        if not (out / DEMO_MARK).exists():
            raise RunFolderError(f"{out} is used, and not by a demo: choose another folder with --out")
        shutil.rmtree(out)
    out.mkdir(parents=True, exist_ok=True)
    (out / DEMO_MARK).touch()
