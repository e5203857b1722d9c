"""Data that worker processes share: one copy in a mapped file without a name."""

from __future__ import annotations

import math
import mmap
import os
import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path

import torch
from torch import Tensor

from intarsia.core import DataError
from intarsia.data import Population

ALIGNMENT = 64


def share(population: Population) -> Population:
    """Return the population on memory that forked processes share.

    The file lies in /dev/shm, or, where that is missing or too small (as in many containers), in the
    folder for temporary files. It has no name any more when this returns: nothing is left behind, however the
    process ends.
    """
    size = sum(_room(t) for t in population.tensors())
    return population.with_tensors(_place(population.tensors(), _map(max(size, ALIGNMENT))))


def _like(flat: Tensor, tensor: Tensor) -> Tensor:
    """Give flat memory the shape of a tensor, and its layout if that is channels-last."""
    if tensor.dim() == 4 and tensor.is_contiguous(memory_format=torch.channels_last):
        n, channels, height, width = tensor.shape
        return flat.view(n, height, width, channels).permute(0, 3, 1, 2)
    return flat.view(tensor.shape)


def _room(tensor: Tensor) -> int:
    return math.ceil(tensor.numel() * tensor.element_size() / ALIGNMENT) * ALIGNMENT


def _map(size: int) -> mmap.mmap:
    with tempfile.TemporaryFile(dir=_folder(size)) as file:
        try:
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(file.fileno(), 0, size)
            else:
                file.truncate(size)
        except OSError as error:
            raise DataError(
                f"no room to share {size >> 20} MiB of data with the workers: {error}; free some, "
                "or point TMPDIR to a larger disk"
            ) from error
        return mmap.mmap(file.fileno(), size)


def _folder(size: int) -> str | None:
    shm = Path("/dev/shm")
    if shm.is_dir() and os.access(shm, os.W_OK) and shutil.disk_usage(shm).free > 2 * size:
        return str(shm)
    return None


def _place(tensors: Iterable[Tensor], memory: mmap.mmap) -> Iterable[Tensor]:
    offset = 0
    for tensor in tensors:
        count = tensor.numel()
        if count == 0:
            yield tensor
            continue
        flat = torch.frombuffer(memory, dtype=tensor.dtype, count=count, offset=offset)
        view = _like(flat, tensor).copy_(tensor)
        offset += _room(tensor)
        yield view
