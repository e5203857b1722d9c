"""Masks: they cancel, against a slow implementation with Python's whole numbers; alone they look like noise."""

from __future__ import annotations

import hashlib
import hmac
import itertools
import json

import numpy as np
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from intarsia.trust import masks

NAMES = ["anna", "bert", "cara", "dora"]


def slow_stream(key: bytes, count: int) -> list[int]:
    """Draw numbers by encrypting one counter after the other."""
    numbers = []
    for block in range(count // 2 + 1):
        draw = Cipher(algorithms.AES(key), modes.ECB()).encryptor()
        data = draw.update(block.to_bytes(16, "big"))
        numbers += [int.from_bytes(data[:8], "little"), int.from_bytes(data[8:], "little")]
    return numbers[:count]


def slow_derived(secret: bytes, salt: bytes, purpose: list[str]) -> bytes:
    """HKDF of RFC 5869, for one block of output."""
    extracted = hmac.new(salt, secret, hashlib.sha256).digest()
    return hmac.new(extracted, json.dumps(purpose).encode() + b"\x01", hashlib.sha256).digest()


def test_streams_and_keys_are_what_a_slow_implementation_gives():
    key = masks.derived(b"s" * 32, b"session", "pair", "a@all")
    assert key == slow_derived(b"s" * 32, b"session", ["pair", "a@all"])
    count = masks.PIECE + 5  # more than one piece
    total = np.zeros(count, np.uint64)
    masks.add_stream(total, key, 1)
    assert total.tolist() == slow_stream(key, count)


def test_masks_of_all_pairs_cancel_modulo_two_to_the_64():
    keys = {name: masks.fresh_key() for name in NAMES}
    public = {name: masks.public_of(key) for name, key in keys.items()}
    numbers = {name: np.arange(9, dtype=np.uint64) * np.uint64(3 * i + 1) for i, name in enumerate(NAMES)}
    masked = {name: own.copy() for name, own in numbers.items()}
    for mine, other in itertools.permutations(NAMES, 2):
        key = masks.derived(masks.agreeing(keys[mine])(public[other]), b"session", "pair")
        masks.add_stream(masked[mine], key, masks.pair_sign(mine, other))
    exact = [sum(int(own[i]) for own in numbers.values()) for i in range(9)]
    assert [sum(int(own[i]) for own in masked.values()) % 2**64 for i in range(9)] == exact
    assert all((masked[name] != numbers[name]).all() for name in NAMES)


def test_what_is_added_can_be_taken_away():
    line = np.array([0, 1, 2**64 - 1], np.uint64)
    changed = line.copy()
    masks.add_stream(changed, b"k" * 32, 1)
    masks.add_stream(changed, b"k" * 32, -1)
    assert changed.tolist() == line.tolist()


def test_tensors_go_into_a_line_and_come_back_with_their_signs():
    tensors = {
        "b": torch.tensor([[-1.0, 2.0**52]], dtype=torch.float64),
        "a": torch.tensor([-(2**61), 5]),
        "none": torch.zeros(0),
    }
    line = masks.in_line(tensors)
    assert line.tolist() == [2**64 - 2**61, 5, 2**64 - 1, 2**52]
    back = masks.in_shape(line, tensors)
    assert {name: t.tolist() for name, t in back.items()} == {
        "a": [-(2**61), 5],
        "b": [[-1, 2**52]],
        "none": [],
    }


def test_a_masked_number_says_nothing_of_the_number():
    """All 64 bits of many masked zeros are as often on as off; another key gives others."""
    zeros = np.zeros(1 << 14, np.uint64)
    masks.add_stream(zeros, masks.fresh_key(), 1)
    bits = np.unpackbits(zeros.view(np.uint8)).reshape(-1, 64).mean(0)
    assert np.abs(bits - 0.5).max() < 6 * 0.5 / (1 << 7)  # six standard deviations of a fair coin
    again = np.zeros(1 << 14, np.uint64)
    masks.add_stream(again, masks.fresh_key(), 1)
    assert not (zeros == again).any()
