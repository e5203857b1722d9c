"""Data that is no client's: the server's own, or known to all; how it is found, checked and sent."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping

import numpy as np
import torch
from torch import Tensor

from intarsia.blocks import Block
from intarsia.core import DataError
from intarsia.data.population import Examples, Population, Scaling

PUBLIC = "public"
"""The block that public data travels as."""


def public_of(source: Population) -> Examples:
    """Return all data of a population, whoever holds it there, as public data."""
    splits = [examples for client in source.clients.values() for examples in client.data.values()]
    if len({tuple(e.x.shape[1:]) for e in splits}) != 1 or len({e.scaling for e in splits}) != 1:
        raise DataError(
            "public: its samples must be alike in shape and scale: choose one device, one data set"
        )
    x, y = torch.cat([e.x for e in splits]), torch.cat([e.y for e in splits])
    return Examples(x, y, splits[0].scaling)


def check_apart(public: Iterable[str], population: Population) -> None:
    """Raise if a sample is both public, by its digest, and a client's."""
    seen = set(public)
    for name, client in population.clients.items() if seen else ():
        both = {digest for examples in client.data.values() for digest in digests(examples)} & seen
        if both:
            raise DataError(
                f"public: {len(both)} of its samples are client '{name}''s too; take others "
                "(population.public sets a share apart that nobody is dealt)"
            )


def digests(examples: Examples) -> list[str]:
    """Return what tells samples apart without showing them; bytes and the same numbers as floats are one."""
    rows = (row.astype(np.float32).tobytes() for row in examples.x.contiguous().numpy())
    return [hashlib.blake2b(row, digest_size=12).hexdigest() for row in rows]


def to_block(public: Examples) -> Block:
    """Return public data as a block, which travels to a client once."""
    tensors = {"x": public.x.contiguous(), "y": public.y.contiguous()}
    if public.scaling is not None:
        s = public.scaling
        tensors["scaling"] = torch.tensor([[s.factor] * len(s.mean), s.mean, s.std], dtype=torch.float64)
    return Block(tensors)


def from_tensors(tensors: Mapping[str, Tensor]) -> Examples:
    """Return public data as a client receives it."""
    scaling = None
    if "scaling" in tensors:
        factor, mean, std = tensors["scaling"].tolist()
        scaling = Scaling(factor[0], tuple(mean), tuple(std))
    return Examples(tensors["x"].cpu(), tensors["y"].cpu(), scaling)
