"""What clients hold: samples of each label."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

MANY_CLIENTS = 40
"""From how many clients on amounts are told by colour, not by length."""


def label_counts(client: Mapping[str, Any]) -> list[int]:
    """Return how many samples of each label a client holds, over its splits."""
    return [sum(counts) for counts in zip(*client["labels"].values(), strict=True)]


def held_by(about: Mapping[str, Any]) -> dict[str, list[int]]:
    """Return how many samples of each label every client holds: those of a cohort, and of a label, together."""
    counts = {name: label_counts(client) for name, client in about["clients"].items()}
    cohort = {name: client.get("cohort", "") for name, client in about["clients"].items()}
    order = sorted(counts, key=lambda name: (cohort[name], _most_first(counts[name]), name))
    return {name: counts[name] for name in order}


def _most_first(counts: Sequence[int]) -> list[int]:
    """Return labels, that of most samples first."""
    return sorted(range(len(counts)), key=lambda label: -counts[label])
