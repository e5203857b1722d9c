"""Keyed chance: every random draw comes from a seed and the words that say what it is for."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterator

import numpy as np
import torch


def key(seed: int, *purpose: str | int) -> int:
    """Return a 63-bit number that depends on the seed and the purpose, and on nothing else."""
    text = json.dumps([seed, *purpose]).encode()
    return int.from_bytes(hashlib.sha256(text).digest()[:8], "big") >> 1


def generator(seed: int, *purpose: str | int) -> torch.Generator:
    """Return a torch generator of its own for one purpose."""
    return torch.Generator().manual_seed(key(seed, *purpose))


def numpy_generator(seed: int, *purpose: str | int) -> np.random.Generator:
    """Return a numpy generator of its own for one purpose."""
    return np.random.Generator(np.random.PCG64(key(seed, *purpose)))


@contextlib.contextmanager
def torch_seeded(seed: int, *purpose: str | int) -> Iterator[None]:
    """Set torch's own generator (dropout, initial weights) for one purpose, and restore it after."""
    number = key(seed, *purpose)
    on_gpu = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    before = torch.default_generator.get_state()
    gpu_before = torch.cuda.get_rng_state_all() if on_gpu else []
    # torch.manual_seed would queue a call, with a stack trace, for every kind of device that is not in use.
    torch.default_generator.manual_seed(number)
    if on_gpu:
        torch.cuda.manual_seed_all(number)
    try:
        yield
    finally:
        torch.default_generator.set_state(before)
        if gpu_before:
            torch.cuda.set_rng_state_all(gpu_before)
