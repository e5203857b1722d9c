"""Masks: streams of whole numbers modulo 2^64 that two clients, or one alone, can make, and that cancel in a sum.

Keys are agreed by X25519, told apart by HKDF-SHA256 for every session and address, and drawn out by AES-256 in counter
mode: each key draws one stream, so that the counter begins at zero.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping

import numpy as np
import torch
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES256
from cryptography.hazmat.primitives.ciphers.modes import CTR
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from numpy.typing import NDArray
from torch import Tensor

PIECE = 1 << 15
"""Numbers that are drawn at once: so many stay in a core's cache."""
_ZEROS = bytes(8 * PIECE)
Numbers = NDArray[np.uint64]
Agree = Callable[[bytes], bytes]


def fresh_key() -> bytes:
    """Return a new private key, from the operating system's generator."""
    return X25519PrivateKey.generate().private_bytes(Encoding.Raw, PrivateFormat.Raw, NoEncryption())


def public_of(private: bytes) -> bytes:
    """Return the public key of a private one."""
    public = X25519PrivateKey.from_private_bytes(private).public_key()
    return public.public_bytes(Encoding.Raw, PublicFormat.Raw)


def agreeing(private: bytes) -> Agree:
    """Return what gives, for a public key, the secret that its owner and this one have in common."""
    key = X25519PrivateKey.from_private_bytes(private)
    return lambda public: key.exchange(X25519PublicKey.from_public_bytes(public))


def derived(secret: bytes, session: bytes, *purpose: str) -> bytes:
    """Return the key of a secret for one purpose in one session."""
    return HKDF(SHA256(), 32, salt=session, info=json.dumps(purpose).encode()).derive(secret)


def add_stream(total: Numbers, key: bytes, sign: int) -> None:
    """Add the stream of a key to numbers, or take it away, modulo 2^64."""
    draw = Cipher(AES256(key), CTR(bytes(16))).encryptor()
    change = np.add if sign > 0 else np.subtract
    for start in range(0, len(total), PIECE):
        piece = total[start : start + PIECE]
        stream = np.frombuffer(draw.update(_ZEROS[: 8 * len(piece)]), "<u8")
        change(piece, stream, out=piece)


def pair_sign(mine: str, other: str) -> int:
    """Return whether a client adds the stream that it has in common with another, or takes it away."""
    return 1 if mine < other else -1


def in_line(tensors: Mapping[str, Tensor]) -> Numbers:
    """Return whole numbers of many tensors in one line, by name, modulo 2^64."""
    flat = [tensors[name].reshape(-1).to(torch.int64).numpy() for name in sorted(tensors)]
    return np.concatenate(flat).view(np.uint64) if flat else np.empty(0, np.uint64)


def in_shape(line: Numbers, like: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return a line of numbers as tensors of these names and shapes, signed."""
    return dict(_cut(torch.from_numpy(line.view(np.int64)), like))


def _cut(line: Tensor, like: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    start = 0
    for name in sorted(like):
        end = start + like[name].numel()
        yield name, line[start:end].reshape(like[name].shape).clone()
        start = end
