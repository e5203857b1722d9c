"""MobileNetV3, small and large."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from pydantic import Field
from torch import Tensor, nn

from intarsia.core import part
from intarsia.models.architectures.chains import Chain, check_images
from intarsia.models.architectures.mobilenet import divisible
from intarsia.models.architectures.mobilenet_v1 import normed
from intarsia.models.spec import Architecture, Shape
from intarsia.models.weights import initialise

STEM = 16


@dataclass(frozen=True)
class Row:
    """A row of the paper's tables: kernel, inner and outer channels, attention, h-swish, stride."""

    kernel: int
    inner: int
    outputs: int
    attention: bool
    swish: bool
    stride: int = 1


@dataclass(frozen=True)
class Table:
    """A network of the paper: its blocks, the channels of the last convolution, and the hidden layer."""

    rows: tuple[Row, ...]
    last: int
    hidden: int


TABLES = {
    "large": Table(
        (
            Row(3, 16, 16, attention=False, swish=False),
            Row(3, 64, 24, attention=False, swish=False, stride=2),
            Row(3, 72, 24, attention=False, swish=False),
            Row(5, 72, 40, attention=True, swish=False, stride=2),
            Row(5, 120, 40, attention=True, swish=False),
            Row(5, 120, 40, attention=True, swish=False),
            Row(3, 240, 80, attention=False, swish=True, stride=2),
            Row(3, 200, 80, attention=False, swish=True),
            Row(3, 184, 80, attention=False, swish=True),
            Row(3, 184, 80, attention=False, swish=True),
            Row(3, 480, 112, attention=True, swish=True),
            Row(3, 672, 112, attention=True, swish=True),
            Row(5, 672, 160, attention=True, swish=True, stride=2),
            Row(5, 960, 160, attention=True, swish=True),
            Row(5, 960, 160, attention=True, swish=True),
        ),
        last=960,
        hidden=1280,
    ),
    "small": Table(
        (
            Row(3, 16, 16, attention=True, swish=False, stride=2),
            Row(3, 72, 24, attention=False, swish=False, stride=2),
            Row(3, 88, 24, attention=False, swish=False),
            Row(5, 96, 40, attention=True, swish=True, stride=2),
            Row(5, 240, 40, attention=True, swish=True),
            Row(5, 240, 40, attention=True, swish=True),
            Row(5, 120, 48, attention=True, swish=True),
            Row(5, 144, 48, attention=True, swish=True),
            Row(5, 288, 96, attention=True, swish=True, stride=2),
            Row(5, 576, 96, attention=True, swish=True),
            Row(5, 576, 96, attention=True, swish=True),
        ),
        last=576,
        hidden=1024,
    ),
}
"""Howard et al. 2019, Tables 1 and 2."""


class Attention(nn.Module):
    """Squeeze and excite: a weight of 0 ... 1 for each channel, from the means of all."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        squeezed = divisible(channels // 4)
        self.weigh = nn.Sequential(
            nn.AdaptiveAvgPool2d(1),
            nn.Conv2d(channels, squeezed, 1),
            nn.ReLU(),
            nn.Conv2d(squeezed, channels, 1),
            nn.Hardsigmoid(),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return the channels, each times its weight."""
        weights: Tensor = self.weigh(x)
        return x * weights


class Bottleneck(nn.Module):
    """Expand, filter each channel, weigh the channels, project; a shortcut where shapes allow."""

    def __init__(self, inputs: int, row: Row, momentum: float) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        if row.inner != inputs:
            layers += normed(nn.Conv2d(inputs, row.inner, 1, bias=False), momentum, _activation(row))
        padding = row.kernel // 2
        spatial = nn.Conv2d(
            row.inner, row.inner, row.kernel, row.stride, padding, groups=row.inner, bias=False
        )
        layers += normed(spatial, momentum, _activation(row))
        if row.attention:
            layers.append(Attention(row.inner))
        layers += normed(nn.Conv2d(row.inner, row.outputs, 1, bias=False), momentum)
        self.way = nn.Sequential(*layers)
        self.shortcut = row.stride == 1 and inputs == row.outputs

    def forward(self, x: Tensor) -> Tensor:
        """Return what the way gives, with the input added where shapes allow."""
        y: Tensor = self.way(x)
        return x + y if self.shortcut else y


@part
class MobileNetV3(Architecture):
    """MobileNetV3 (Howard et al. 2019); parts `stem`, `block1` ..., `last`, `hidden`, `head`.

    Torch's symmetric padding. At width 1 the parts before `hidden` hold 927,008 parameters (small) or 2,971,952
    (large).
    """

    name: ClassVar[str] = "mobilenet_v3"
    summary: ClassVar[str] = "MobileNetV3, small or large, of any width"

    size: Literal["small", "large"] = "small"
    """Which of the two published networks."""
    width: Annotated[float, Field(gt=0)] = 1.0
    """What all channels are multiplied by, then rounded to multiples of 8."""
    stride: Literal[1, 2] = 2
    """Stride of the stem (published: 2; 1 keeps more of small images)."""
    momentum: Annotated[float, Field(gt=0, le=1)] = 0.1
    """Share of a new batch in the running statistics (published: 0.01)."""
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.2
    """Share of the hidden layer's values that are dropped."""

    def build(self, shape: Shape, outputs: int) -> nn.Module:
        """Return the layers in order."""
        check_images(self.name, shape, 8 * self.stride)
        table = TABLES[self.size]
        layers: Chain = OrderedDict()
        width = divisible(STEM * self.width)
        layers["stem"] = self._conv(shape[0], width, 3, self.stride)
        for number, row in enumerate(map(self._wide, table.rows), 1):
            layers[f"block{number}"] = Bottleneck(width, row, self.momentum)
            width = row.outputs
        last, hidden = divisible(table.last * self.width), divisible(table.hidden * self.width)
        layers["last"] = self._conv(width, last, 1, 1)
        layers |= OrderedDict(pool=nn.AdaptiveAvgPool2d(1), flatten=nn.Flatten())
        layers |= OrderedDict(hidden=nn.Linear(last, hidden), swish=nn.Hardswish())
        layers |= OrderedDict(dropout=nn.Dropout(self.dropout), head=nn.Linear(hidden, outputs))
        model = nn.Sequential(layers)
        initialise(model)
        return model

    def _conv(self, inputs: int, outputs: int, kernel: int, stride: int) -> nn.Sequential:
        conv = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False)
        return nn.Sequential(*normed(conv, self.momentum, nn.Hardswish()))

    def _wide(self, row: Row) -> Row:
        inner, outputs = (divisible(channels * self.width) for channels in (row.inner, row.outputs))
        return Row(row.kernel, inner, outputs, row.attention, row.swish, row.stride)


def _activation(row: Row) -> nn.Module:
    return nn.Hardswish() if row.swish else nn.ReLU()
