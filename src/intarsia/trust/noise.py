"""Where Gaussian noise and the chance to take part come from: the seed, or the operating system."""

from __future__ import annotations

import secrets
from typing import Literal, Protocol

import numpy as np
import torch
from torch import Tensor

from intarsia.blocks import Sums
from intarsia.core import IntarsiaError, SettingsError, chance

MOST_STEPS = 2.0**44
"""The largest standard deviation in steps of a grid: a number in double precision then tells all whole steps apart."""
Word = str | int


class Randomness(Protocol):
    """Gives independent numbers for a purpose."""

    def uniform(self, count: int, *purpose: Word) -> np.ndarray:
        """Return numbers between 0 and 1."""

    def normal(self, count: int, *purpose: Word) -> np.ndarray:
        """Return numbers of the standard normal distribution."""


class Keyed:
    """Numbers that follow from the seed: a simulation repeats bit for bit; who knows the seed knows the noise."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def uniform(self, count: int, *purpose: Word) -> np.ndarray:
        """Return numbers between 0 and 1."""
        return chance.numpy_generator(self.seed, *purpose).random(count)

    def normal(self, count: int, *purpose: Word) -> np.ndarray:
        """Return numbers of the standard normal distribution."""
        return chance.numpy_generator(self.seed, *purpose).standard_normal(count)


class System:
    """Numbers that nobody can know: ChaCha20 under a new key of the operating system for every draw."""

    def uniform(self, count: int, *purpose: Word) -> np.ndarray:
        """Return numbers above 0, up to 1."""
        bits = np.frombuffer(_stream(8 * count), dtype="<u8") >> np.uint64(11)
        numbers: np.ndarray = (bits + 1.0) * 2.0**-53
        return numbers

    def normal(self, count: int, *purpose: Word) -> np.ndarray:
        """Return numbers of the standard normal distribution (Box and Muller 1958)."""
        half = (count + 1) // 2
        length, angle = np.sqrt(-2 * np.log(self.uniform(half))), 2 * np.pi * self.uniform(half)
        return np.concatenate([length * np.cos(angle), length * np.sin(angle)])[:count]


def _stream(size: int) -> bytes:
    """Return bytes of a stream cipher under a key that is used once."""
    try:
        from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
    except ImportError as error:
        raise SettingsError(
            "privacy.randomness: \"system\" needs the package cryptography: pip install 'intarsia[privacy]'"
        ) from error
    cipher = algorithms.ChaCha20(secrets.token_bytes(32), bytes(16))
    return Cipher(cipher, mode=None).encryptor().update(bytes(size))


def randomness(kind: Literal["auto", "keyed", "system"], seed: int) -> Randomness:
    """Return where numbers come from; where nobody says, from the seed."""
    return System() if kind == "system" else Keyed(seed)


def add_noise(sums: Sums, deviation: float, source: Randomness, *purpose: Word) -> None:
    """Add noise of a standard deviation to the sums of an address, in whole steps of their grids.

    Sums are whole numbers of steps, so rounding the noise is rounding the sum with noise: what is released never
    shows in which of its last bits a double came to be (Mironov 2012).
    """
    for name, grid in sums.grids.items():
        total, steps = sums.tensors[name], deviation / grid.step
        if steps > MOST_STEPS:
            raise IntarsiaError(
                f"tensor '{name}': noise of standard deviation {deviation:.3g} is more than its sums can carry: "
                "choose a smaller privacy.clip, or less noise"
            )
        drawn = source.normal(total.numel(), *purpose, name)
        total.add_(_whole(drawn, steps, total))


def _whole(drawn: np.ndarray, steps: float, like: Tensor) -> Tensor:
    return torch.from_numpy(drawn).mul_(steps).round_().to(like.dtype).view(like.shape)
