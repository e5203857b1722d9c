"""How many threads compute: one, wherever bits must not depend on the machine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

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
