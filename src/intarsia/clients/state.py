"""What stays with a client between rounds."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from intarsia.blocks import Address

State = Mapping[str, Any]
"""What stays with a client: versions of its private blocks, and plain values."""
RESIDUAL = "|residual"
"""Ends the name of what a codec lost of a block: it is kept among the client's own blocks."""
KEPT = "|kept"
"""Ends the name of tensors that a method keeps with the client, likewise."""
AT_SITE = "site"
"""The key of a state that is only a hash here: the state itself never left the client's site."""


def state_version(state: State) -> str:
    """Return the hash of a client state."""
    return hashlib.sha256(json.dumps(state, sort_keys=True).encode()).hexdigest()[:32] if state else ""


def residual_of(address: Address) -> str:
    """Return the name of what a codec lost of a block: it goes with the client to another group, not past a restart."""
    return f"{address.block}|{address.begun}{RESIDUAL}"


def is_residual(name: str, block: str) -> bool:
    """Return whether a name is that of what a codec lost of this block."""
    return name.startswith(f"{block}|") and name.endswith(RESIDUAL)
