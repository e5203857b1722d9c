"""Which versions play a part in a run's results."""

from __future__ import annotations

import platform
from importlib.metadata import version

from intarsia._version import __version__

Versions = dict[str, str]


def versions_here() -> Versions:
    """Return the versions of this process."""
    return {
        "intarsia": __version__,
        "python": platform.python_version(),
        **{name: version(name) for name in ("torch", "numpy")},
    }
