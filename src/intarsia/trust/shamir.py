"""Secrets shared among many, so that a threshold of them can put one together and fewer learn nothing (Shamir 1979).

Over the integers modulo the first prime above 2^256, so that a key of 32 bytes is a number as it is. Written here
because no library that is kept well does it for secrets of this size: PyCryptodome's splits 16 bytes.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence

PRIME = 2**256 + 297
SECRET = 32
"""Bytes of a secret."""
SHARE = 33
"""Bytes of a share."""


def split(secret: bytes, holders: int, threshold: int) -> list[bytes]:
    """Return a share for each holder, the first one's first; any `threshold` of them give the secret back."""
    if len(secret) != SECRET or not 1 <= threshold <= holders:
        raise ValueError(f"{len(secret)} bytes cannot be split for {threshold} of {holders}")
    polynomial = [int.from_bytes(secret, "big"), *(secrets.randbelow(PRIME) for _ in range(threshold - 1))]
    return [_value(polynomial, x).to_bytes(SHARE, "big") for x in range(1, holders + 1)]


def coefficients(holders: Sequence[int]) -> dict[int, int]:
    """Return what each of these holders' shares counts in a secret (the first holder of all is 1)."""
    found = {}
    for mine in holders:
        above, below = 1, 1
        for other in holders:
            if other != mine:
                above, below = above * other % PRIME, below * (other - mine) % PRIME
        found[mine] = above * pow(below, -1, PRIME) % PRIME
    return found


def joined(shares: Mapping[int, bytes], counts: Mapping[int, int]) -> bytes:
    """Return the secret of shares by holder; `counts` are the coefficients of just these holders.

    Shares of different secrets give something else, perhaps no secret at all: a `ValueError`.
    """
    secret = sum(count * int.from_bytes(shares[holder], "big") for holder, count in counts.items()) % PRIME
    if secret >= 2 ** (8 * SECRET):
        raise ValueError("these shares are not of one secret")
    return secret.to_bytes(SECRET, "big")


def _value(polynomial: Sequence[int], x: int) -> int:
    """Return a polynomial's value (Horner)."""
    value = 0
    for factor in reversed(polynomial):
        value = (value * x + factor) % PRIME
    return value
