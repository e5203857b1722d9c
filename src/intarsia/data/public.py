"""Data that is no client's: the server's own, or known to all; how it is found, checked and sent."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from intarsia.blocks import Block, DataError
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


def check_apart(public: Examples, population: Population) -> None:
    """Raise if a sample is both public and a client's."""
    seen = set(_digests([public]))
    for name, client in population.clients.items():
        both = seen.intersection(_digests(client.data.values()))
        if both:
            raise DataError(
                f"public: {len(both)} of its samples are client '{name}''s too; take others "
                "(population.public sets a share apart that nobody is dealt)"
            )


def _digests(splits: Iterable[Examples]) -> Iterable[bytes]:
    for examples in splits:
        for row in examples.x.contiguous().numpy():
            yield hashlib.blake2b(row.tobytes(), digest_size=12).digest()


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
