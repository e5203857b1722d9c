"""Pieces of work that do not depend on each other: one way to call them, whoever does them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

T = TypeVar("T")
R = TypeVar("R")


class Each(Protocol):
    """Calls a function with every item; returns what it gave, in the order of the items.

    Items may be done in other processes, several at once. So a piece seeds its own chance, does not rely on what
    another piece changed, and all that is left of it is its result: plain values and tensors.
    """

    def __call__(self, function: Callable[[T], R], items: Sequence[T]) -> list[R]:
        """Do all items; of those that fail, the first one's error is raised."""
        ...


def one_by_one(function: Callable[[T], R], items: Sequence[T]) -> list[R]:
    """Do one item after the other in this process."""
    return [function(item) for item in items]
