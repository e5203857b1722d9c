"""Numbers as people read them."""

from __future__ import annotations


def percent(share: float | None) -> str:
    """Return 0.123 as 12.3 %."""
    return "-" if share is None else f"{100 * share:.1f} %"


def size(count: float) -> str:
    """Return bytes with a unit (1 kB = 1000 bytes)."""
    for unit in ("B", "kB", "MB", "GB"):
        if abs(count) < 1000:
            return f"{count:.0f} B" if unit == "B" else f"{count:.2f} {unit}"
        count /= 1000
    return f"{count:.2f} TB"
