"""Stitches in closed form: by ridge regression towards what the next block takes in its own model."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from intarsia.methods.pfedclub.assembly import Stitch


def ridge(x: Tensor, y: Tensor, strength: float) -> tuple[Tensor, Tensor]:
    """Return W and b that minimise |x W' + b - y|^2 + s |W|^2, with s the strength times x's mean squared column.

    Columns are centred, so b bears no penalty. With fewer rows than columns, the system of the rows is solved, which
    has the same solution. What does not vary gets no weight.
    """
    x, y = x.double(), y.double()
    mean, aim = x.mean(0), y.mean(0)
    x, y = x - mean, y - aim
    rows, columns = x.shape
    s = strength * float(x.square().sum()) / columns + torch.finfo(x.dtype).tiny ** 0.5
    if rows < columns:
        weight = (x.T @ torch.linalg.solve(_raised(x @ x.T, s), y)).T
    else:
        weight = torch.linalg.solve(_raised(x.T @ x, s), x.T @ y).T
    return weight, aim - weight @ mean


def _raised(square: Tensor, by: float) -> Tensor:
    return square + by * torch.eye(len(square), dtype=square.dtype)


@torch.no_grad()
def start(layers: nn.Module, stitch: Stitch, x: Tensor, aim: Tensor, strength: float) -> None:
    """Give a stitch the weights by which what it takes, x, comes closest to the aim, before its ReLU."""
    rows, wanted = _pairs(stitch, x, aim)
    weight, bias = ridge(rows, wanted, strength)
    layer = next(one for one in layers.children() if isinstance(one, nn.Conv2d | nn.Linear))
    layer.weight.copy_(weight.reshape(layer.weight.shape))
    assert layer.bias is not None
    layer.bias.copy_(bias)


def _pairs(stitch: Stitch, x: Tensor, aim: Tensor) -> tuple[Tensor, Tensor]:
    """Return what the stitch's layer with weights takes, and what it is to give: a row a sample, or a place of one."""
    if len(stitch.takes) == len(stitch.gives) == 3:
        size = min(stitch.takes[1:], stitch.gives[1:], key=math.prod)
        return _places(x, size), _places(aim, size)
    if len(stitch.takes) == 3:
        return x.mean((2, 3)), aim.flatten(1)
    return x, aim.mean((2, 3)) if len(stitch.gives) == 3 else aim.flatten(1)


def _places(maps: Tensor, size: tuple[int, ...]) -> Tensor:
    """Return maps, averaged to a size, as one row a place."""
    height, width = size
    return functional.adaptive_avg_pool2d(maps, (height, width)).permute(0, 2, 3, 1).flatten(0, 2)
