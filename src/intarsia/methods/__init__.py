"""One file or folder a method; the registry is the folder."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from types import ModuleType
from typing import TypeVar

from intarsia.blocks import Merge
from intarsia.core import Registry
from intarsia.methods.asked import Asked, of_training
from intarsia.methods.base import (
    EVALUATE,
    OWN,
    Exchange,
    Method,
    Replies,
    Round,
    Sharing,
    cut_before,
    report,
)
from intarsia.methods.newcomers import NEW, TUNED, own_stages, scored_stages, told_apart, tuned_stages
from intarsia.methods.server import Addresses, ClientModel, Groups, Lines, Sent, Server, SharedBlocks
from intarsia.models import MODELS, Architecture
from intarsia.trust import ROBUST

K = TypeVar("K")


def _modules() -> Iterator[ModuleType]:
    for found in pkgutil.walk_packages(__path__, f"{__name__}."):
        yield importlib.import_module(found.name)


def _classes(kind: type[K]) -> Iterator[type[K]]:
    for module in _modules():
        for value in vars(module).values():
            if isinstance(value, type) and issubclass(value, kind) and value.__module__ == module.__name__:
                yield value


MERGES: Registry[type[Merge]] = Registry("merges", Merge, (Merge, *_classes(Merge), *ROBUST))
METHODS: Registry[type[Method]] = Registry(
    "methods", Method, (c for c in _classes(Method) if "name" in vars(c))
)
MODELS.update({c.name: c for c in _classes(Architecture)})
SHARINGS: Registry[type[Sharing]] = Registry("sharings", Sharing, _classes(Sharing))

__all__ = [
    "EVALUATE",
    "MERGES",
    "METHODS",
    "NEW",
    "OWN",
    "SHARINGS",
    "TUNED",
    "Addresses",
    "Asked",
    "ClientModel",
    "Exchange",
    "Groups",
    "Lines",
    "Method",
    "Replies",
    "Round",
    "Sent",
    "Server",
    "SharedBlocks",
    "Sharing",
    "cut_before",
    "of_training",
    "own_stages",
    "report",
    "scored_stages",
    "told_apart",
    "tuned_stages",
]
