"""MobileNetV1: separable convolutions one behind the other."""

from __future__ import annotations

from collections import OrderedDict
from typing import Annotated, ClassVar, Literal

from pydantic import Field
from torch import Tensor, nn

from intarsia.core import part
from intarsia.models.architectures.chains import Chain, check_images, with_pooled_head
from intarsia.models.architectures.mobilenet import EPSILON
from intarsia.models.spec import Architecture, Shape

STEM = 32
STAGES = ((64, 1, 1), (128, 2, 2), (256, 2, 2), (512, 6, 2), (1024, 2, 2))
"""Channels, separable convolutions and first stride of each stage at width 1 (Howard et al. 2017, Table 1)."""


class Separable(nn.Module):
    """A 3x3 convolution of each channel by itself, then a 1x1 one of all; each with norm and ReLU."""

    def __init__(self, inputs: int, outputs: int, stride: int, momentum: float) -> None:
        super().__init__()
        depthwise = nn.Conv2d(inputs, inputs, 3, stride, 1, groups=inputs, bias=False)
        self.way = nn.Sequential(
            *normed(depthwise, momentum, nn.ReLU()),
            *normed(nn.Conv2d(inputs, outputs, 1, bias=False), momentum, nn.ReLU()),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return what both convolutions give."""
        y: Tensor = self.way(x)
        return y


@part
class MobileNetV1(Architecture):
    """MobileNetV1 (Howard et al. 2017); parts `stem`, `block1` ... `block13`, `head`.

    Torch's symmetric padding. At width 1 the parts before the head hold 3,206,976 parameters.
    """

    name: ClassVar[str] = "mobilenet_v1"
    summary: ClassVar[str] = "MobileNetV1 of any width: a stem and 13 separable convolutions"

    width: Annotated[float, Field(gt=0)] = 1.0
    """What all channels are multiplied by."""
    stride: Literal[1, 2] = 2
    """Stride of the stem (published: 2; 1 keeps more of small images)."""
    momentum: Annotated[float, Field(gt=0, le=1)] = 0.1
    """Share of a new batch in the running statistics."""

    def build(self, shape: Shape, outputs: int) -> nn.Module:
        """Return the layers in order."""
        check_images(self.name, shape, 8 * self.stride)
        inputs = self._wide(STEM)
        stem = nn.Conv2d(shape[0], inputs, 3, self.stride, 1, bias=False)
        layers: Chain = OrderedDict(stem=nn.Sequential(*normed(stem, self.momentum, nn.ReLU())))
        for number, (channels, stride) in enumerate(self._blocks(), 1):
            layers[f"block{number}"] = Separable(inputs, channels, stride, self.momentum)
            inputs = channels
        return with_pooled_head(layers, inputs, outputs)

    def _blocks(self) -> list[tuple[int, int]]:
        """Return channels and stride of every separable convolution."""
        return [
            (self._wide(channels), first if i == 0 else 1)
            for channels, blocks, first in STAGES
            for i in range(blocks)
        ]

    def _wide(self, channels: int) -> int:
        return max(1, int(channels * self.width))


def normed(conv: nn.Conv2d, momentum: float, activation: nn.Module | None = None) -> list[nn.Module]:
    """Return a convolution, its norm, and the activation behind them if there is one."""
    norm = nn.BatchNorm2d(conv.out_channels, EPSILON, momentum)
    return [conv, norm] if activation is None else [conv, norm, activation]
