"""The chart library that pages carry: plotly.js, the part with plane charts, as its authors publish it (MIT)."""

from __future__ import annotations

import gzip
import hashlib
from importlib import resources

from intarsia.core import IntarsiaError

NAME, VERSION = "plotly.js-cartesian-dist-min", "4.1.1"
"""Where it comes from: this package and version of npm."""
SHA256 = "79542150855a52c567260e3137095dbe2b744e6d702a5cabe67da246942fba7a"


def chart_library() -> str:
    """Return the library's text; one that is not the published one is an error."""
    packed = (resources.files(__name__) / "plotly-cartesian.min.js.gz").read_bytes()
    content = gzip.decompress(packed)
    if hashlib.sha256(content).hexdigest() != SHA256:
        raise IntarsiaError(f"the chart library is not {NAME} {VERSION}: install intarsia anew")
    return content.decode()
