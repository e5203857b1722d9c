"""Numbers as people read them."""

from __future__ import annotations


def percent(share: float | None) -> str:
    """Return 0.123 as 12.3 %."""
    return "-" if share is None else f"{100 * share:.1f} %"


def mean_and_std(mean: float | None, std: float | None, measure: str) -> str:
    """Return an accuracy as 93.1 ± 0.4 %, a loss as 0.123 ± 0.010; the mean alone without a deviation."""
    if mean is None:
        return "-"
    factor, digits, unit = (100, 1, " %") if measure == "accuracy" else (1, 3, "")
    more = "" if std is None else f" ± {factor * std:.{digits}f}"
    return f"{factor * mean:.{digits}f}{more}{unit}"


def size(count: float) -> str:
    """Return bytes with a unit (1 kB = 1000 bytes)."""
    for unit in ("B", "kB", "MB", "GB"):
        if abs(count) < 1000:
            return f"{count:.0f} B" if unit == "B" else f"{count:.2f} {unit}"
        count /= 1000
    return f"{count:.2f} TB"


def duration(seconds: float) -> str:
    """Return seconds as 40 s, 3 min or 1.5 h."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"
