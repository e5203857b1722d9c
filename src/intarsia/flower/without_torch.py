"""Starts a module of `flower` without the rest of Intarsia, and so without torch: `without_torch.py site.node ...`.

Sites start it for every node, and it forks for every message. The package's own `__init__` would load everything.
"""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType


def main(module: str, arguments: list[str]) -> None:
    """Be a module of this room that imports flwr and the standard library alone."""
    package = ModuleType("intarsia")
    package.__path__ = [str(Path(__file__).resolve().parents[1])]
    sys.modules["intarsia"] = package
    import_module(f"intarsia.flower.{module}").main(arguments)


def command(module: str, *arguments: str) -> list[str]:
    """Return the command that starts a module; the folder it is started in is no place for code (-P)."""
    return [sys.executable, "-P", __file__, module, *arguments]


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
