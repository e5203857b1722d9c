"""Peers that are used from a checkout: packages that they import and that their FedAvg does not need."""

from __future__ import annotations

import importlib.util
import sys
import types
from collections.abc import Iterable, Iterator
from importlib.machinery import ModuleSpec
from typing import Any
from unittest.mock import MagicMock

UNUSED = ("h5py", "pynvml", "torchvision", "munch", "pandas", "seaborn", "matplotlib")


class Anything(types.ModuleType):
    """A module that has every name and no content."""

    __path__: list[str] = []  # noqa: RUF012

    def __getattr__(self, name: str) -> MagicMock:
        return MagicMock()


class Silent:
    """A progress bar that shows nothing."""

    def __init__(self, items: Iterable[Any] = (), *_: Any, **__: Any) -> None:
        self.items = items

    def __iter__(self) -> Iterator[Any]:
        return iter(self.items)

    def set_description(self, *_: Any, **__: Any) -> None:
        """Show nothing."""


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
        progress.tqdm = Silent  # type: ignore[attr-defined]
        sys.modules["tqdm"] = progress
