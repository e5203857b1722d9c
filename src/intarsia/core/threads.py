"""How work is done: by how many threads (one, wherever bits must not depend on the machine), and piece by piece."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol, TypeVar

import torch


def one_thread() -> AbstractContextManager[None]:
    """Compute with one thread, as every engine does: the number of threads can change a sum's last bit."""
    return threads(1)


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Compute with this many threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


TURN = 0.0002
"""Seconds after which a thread that waits for the interpreter gets it; Python's own 5 ms are half of a small round."""


@contextmanager
def quick_turns() -> Iterator[None]:
    """Let threads of this process wait less for each other: what writes in the background holds nobody up."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(min(TURN, before))
    try:
        yield
    finally:
        sys.setswitchinterval(before)


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
