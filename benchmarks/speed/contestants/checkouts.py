"""Peers that are used from a checkout: packages that they import and that their FedAvg does not need."""

from __future__ import annotations

import importlib.util
import sys
import types
from importlib.machinery import ModuleSpec
from unittest.mock import MagicMock

UNUSED = ("h5py", "pynvml", "torchvision", "munch", "pandas")


class Anything(types.ModuleType):
    """A module that has every name and no content."""

    __path__: list[str] = []  # noqa: RUF012

    def __getattr__(self, name: str) -> MagicMock:
        return MagicMock()


def pretend() -> None:
    """Put something in place of packages that are not installed (or do not load) and are not used."""
    for name in UNUSED:
        if importlib.util.find_spec(name) is None:
            for part in (
                "",
                ".transforms",
                ".datasets",
                ".datasets.utils",
                ".datasets.folder",
                ".models",
                ".utils",
            ):
                sys.modules[name + part] = module = Anything(name + part)
                module.__spec__ = ModuleSpec(name + part, None)
    if importlib.util.find_spec("tqdm") is None:
        progress = types.ModuleType("tqdm")
        progress.__spec__ = ModuleSpec("tqdm", None)
        progress.tqdm = lambda items, *_, **__: items  # type: ignore[attr-defined]
        sys.modules["tqdm"] = progress
