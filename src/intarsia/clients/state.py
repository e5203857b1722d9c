"""What stays with a client between rounds."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

State = Mapping[str, Any]
"""What stays with a client: versions of its private blocks, and plain values."""
RESIDUAL = "|residual"
"""Ends the name of what a codec lost of a block: it is kept among the client's own blocks.

The name begins with the block and how often it was restarted: what it lost before belongs to another block."""
KEPT = "|kept"
"""Ends the name of tensors that a method keeps with the client, likewise."""
AT_SITE = "site"
"""The key of a state that is only a hash here: the state itself never left the client's site."""


def state_version(state: State) -> str:
    """Return the hash of a client state."""
    return hashlib.sha256(json.dumps(state, sort_keys=True).encode()).hexdigest()[:32] if state else ""


def is_residual(name: str, block: str) -> bool:
    """Return whether a name is that of what a codec lost of this block."""
    return name.startswith(f"{block}|") and name.endswith(RESIDUAL)
