"""Public data as a server uses it: inputs with labels, or without labels and with views that were changed a little."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from intarsia.core import chance
from intarsia.data import Examples
from intarsia.training.descent import inputs_of

SHIFT = 4
"""Pixels by which an image is moved at most."""
JITTER = 0.4
"""By how much brightness and contrast are changed at most."""


class PublicData(NamedTuple):
    """Samples that the server holds: the inputs themselves, then changed views of them; labels if there are any."""

    views: tuple[Tensor, ...]
    y: Tensor | None = None


def drawn(examples: Examples, most: int, seed: int, purpose: str) -> Examples:
    """Return at most so many of the samples, in order; which ones depends on seed and purpose (0: all)."""
    if not 0 < most < len(examples):
        return examples
    rows = torch.randperm(len(examples), generator=chance.generator(seed, purpose))[:most].sort().values
    return Examples(examples.x[rows], examples.y[rows], examples.scaling)


def unlabelled(examples: Examples, seed: int, copies: int, flips: bool) -> PublicData:
    """Return public data without labels: the inputs, and so many copies that are changed as raw pixels."""
    draws = (chance.generator(seed, "augmentation", copy) for copy in range(copies))
    changed = (Examples(augment(examples.x, draw, flips), examples.y, examples.scaling) for draw in draws)
    return PublicData((as_inputs(examples), *map(as_inputs, changed)))


def as_inputs(examples: Examples) -> Tensor:
    """Return all samples as models take them."""
    return inputs_of(examples, torch.arange(len(examples))).to(torch.get_default_dtype())


def augment(raw: Tensor, draw: torch.Generator, flips: bool) -> Tensor:
    """Return images (bytes, or numbers of 0 ... 1) moved, flipped if that is allowed, brighter or darker, as floats."""
    top = 1.0 if raw.is_floating_point() else 255.0
    images = _moved(raw.float(), draw)
    if flips:
        turned = torch.rand(len(raw), 1, 1, 1, generator=draw) < 0.5
        images = torch.where(turned, images.flip(3), images)
    bright, contrast = (1 + JITTER * (2 * torch.rand(2, len(raw), 1, 1, 1, generator=draw) - 1)).unbind()
    images = images * bright
    mean = images.mean(dim=(1, 2, 3), keepdim=True)
    return ((images - mean) * contrast + mean).clamp(0.0, top)


def _moved(images: Tensor, draw: torch.Generator) -> Tensor:
    """Move each image by some pixels; what was outside is black."""
    count, _, height, width = images.shape
    padded = functional.pad(images, (SHIFT,) * 4).permute(0, 2, 3, 1)
    down, right = torch.randint(0, 2 * SHIFT + 1, (2, count, 1), generator=draw).unbind()
    rows = (down + torch.arange(height))[:, :, None]
    columns = (right + torch.arange(width))[:, None, :]
    return padded[torch.arange(count)[:, None, None], rows, columns].permute(0, 3, 1, 2).contiguous()


def nt_xent(one: Tensor, other: Tensor, temperature: float = 0.07) -> Tensor:
    """Return the normalised temperature-scaled cross-entropy of two views (Wang et al. 2024, eq. 3).

    Each of the 2n rows should be closest, by cosine, to the row that is another view of the same sample.
    """
    rows = functional.normalize(torch.cat([one, other]), dim=1)
    closeness = rows @ rows.T / temperature
    itself = torch.eye(len(rows), dtype=torch.bool, device=rows.device)
    partner = torch.arange(len(rows), device=rows.device).roll(len(one))
    return functional.cross_entropy(closeness.masked_fill(itself, -torch.inf), partner)
