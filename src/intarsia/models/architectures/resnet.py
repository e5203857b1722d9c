"""Residual networks for small images."""

from __future__ import annotations

from collections import OrderedDict
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional

from intarsia.core import SettingsError, part
from intarsia.models.architectures.chains import Chain, Size, check_images, with_pooled_head
from intarsia.models.spec import Architecture, Shape


class BasicBlock(nn.Module):
    """Two 3x3 convolutions with batch norm beside a shortcut without parameters.

    With a stride, the shortcut is 2x2 average pooling; channels that it lacks are zeros.
    """

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.stride = stride

    def forward(self, x: Tensor) -> Tensor:
        """Return the sum of both ways, rectified."""
        y = torch.relu(self.norm1(self.conv1(x)))
        y = self.norm2(self.conv2(y))
        shortcut = functional.avg_pool2d(x, 2) if self.stride > 1 else x
        missing = y.shape[1] - x.shape[1]
        if missing:
            shortcut = functional.pad(shortcut, (0, 0, 0, 0, 0, missing))
        return torch.relu(y + shortcut)


@part
class ResNet(Architecture):
    """A stem, stages of basic blocks that each begin with a stride of 2, global pooling and a linear head.

    With its defaults ResNet26 as in Rebuffi et al. 2018: 25 bias-free 3x3 convolutions and one linear layer.
    """

    name: ClassVar[str] = "resnet"
    summary: ClassVar[str] = (
        "ResNet26 for small images (25 convolutions of 3x3), or narrower and shallower ones"
    )

    stem: Size = 32
    """Channels of the first convolution."""
    channels: Annotated[tuple[Size, ...], Field(min_length=1)] = (64, 128, 256)
    """Channels of each stage."""
    blocks: Size = 4
    """Blocks of a stage."""

    def build(self, shape: Shape, outputs: int) -> nn.Module:
        """Return the network; parts `stem`, `stage1`, ..., `norm`, `head`."""
        least = 2 ** len(self.channels)
        check_images(self.name, shape, least, multiple=least)
        if (*self.channels,) != (*sorted(self.channels),) or self.stem > self.channels[0]:
            raise SettingsError("model 'resnet': channels must not become fewer from stage to stage")
        stem = OrderedDict(
            conv=nn.Conv2d(shape[0], self.stem, 3, 1, 1, bias=False), norm=nn.BatchNorm2d(self.stem)
        )
        layers: Chain = OrderedDict(stem=nn.Sequential(stem))
        width = self.stem
        for number, size in enumerate(self.channels, 1):
            stage = [
                BasicBlock(width if i == 0 else size, size, 2 if i == 0 else 1) for i in range(self.blocks)
            ]
            layers[f"stage{number}"] = nn.Sequential(*stage)
            width = size
        layers["norm"] = nn.BatchNorm2d(width)
        layers["relu"] = nn.ReLU()
        return with_pooled_head(layers, width, outputs)


def resnet26(classes: int = 10) -> nn.Module:
    """Return ResNet26 for colour images, with weights drawn from torch's generator."""
    return ResNet().build((3, 72, 72), classes)
