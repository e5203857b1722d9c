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
    devices = list(range(torch.cuda.device_count())) if torch.cuda.is_initialized() else []  # type: ignore[no-untyped-call]
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(key(seed, *purpose))
        yield
