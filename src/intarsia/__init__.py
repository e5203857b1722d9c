"""Modular personalised federated learning.

Clients with different data, devices and model shapes train together; each ends up with a model of its own,
fitted together from blocks that are shared with exactly the right others; only blocks that changed travel.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from intarsia._version import __version__ as __version__

if TYPE_CHECKING:
    from intarsia.api import *  # noqa: F403
else:

    def __getattr__(name: str) -> Any:
        """Return a public name or a room; torch and all the rest are read when one is first asked for."""
        from importlib import import_module
        from importlib.util import find_spec

        if not name.startswith("_") and name != "api" and find_spec(f"intarsia.{name}") is not None:
            return import_module(f"intarsia.{name}")
        public = import_module("intarsia.api") if not name.startswith("_") or name == "__all__" else None
        if not hasattr(public, name):
            raise AttributeError(f"module 'intarsia' has no attribute '{name}'")
        return getattr(public, name)

    def __dir__() -> list[str]:
        return sorted({*globals(), *__getattr__("__all__")})
