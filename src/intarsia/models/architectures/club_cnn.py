"""The four convolutional networks that pFedClub's clients hold."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from pydantic import Field
from torch import nn

from intarsia.core import part
from intarsia.models.architectures.chains import Chain, check_images
from intarsia.models.spec import Architecture, Shape


@dataclass(frozen=True)
class Conv:
    """One convolution: its channels and kernel, and what stands behind it."""

    channels: int
    kernel: int = 5
    norm: bool = False
    pool: bool = False
    dropout: bool = False


TABLE: dict[int, tuple[tuple[Conv, ...], tuple[int, ...]]] = {
    1: ((Conv(10, pool=True), Conv(64, pool=True)), (50,)),
    2: ((Conv(16, pool=True), Conv(32, pool=True), Conv(64)), (128,)),
    3: (
        (Conv(6, pool=True), Conv(16, pool=True), Conv(32), Conv(64, pool=True), Conv(128)),
        (1024, 128, 64),
    ),
    4: (
        (
            Conv(32, norm=True),
            Conv(64, 3, pool=True),
            Conv(128, 3, norm=True),
            Conv(128, pool=True, dropout=True),
            Conv(256, 3, norm=True),
            Conv(256, 3, pool=True),
        ),
        (1024, 512, 256),
    ),
}
"""Convolutions and hidden layers of each network: kernels and order by Wang et al. 2024, Appendix B; for sizes see
`ClubCNN`."""


@part
class ClubCNN(Architecture):
    """CNN1 ... CNN4 of pFedClub (Wang et al. 2024, Appendix B); parts `conv1` ..., `hidden1` ..., `head`.

    The paper gives kernels, pooling and norms, and no sizes. CNN4's channels and its hidden 1024 and 512 are those of a
    network that the published code of pFedHR (Wang et al. 2023) keeps as a comment; its hidden 256, and all sizes of
    CNN1, CNN2 and CNN3 are ours. "Same" padding is ours too (without it the deep ones do not fit 32x32), as is the
    share of dropout; so is `width`, which narrows a network for methods whose clients hold slices of one. The pooling
    stands before the ReLU: the same values, and fewer to clip.
    """

    name: ClassVar[str] = "club_cnn"
    summary: ClassVar[str] = "pFedClub's CNN1 to CNN4: two to six convolutions, one to three hidden layers"

    number: Literal[1, 2, 3, 4] = 1
    """Which of pFedClub's CNN1 to CNN4."""
    width: Annotated[float, Field(gt=0)] = 1.0
    """What all channels and hidden sizes are multiplied by."""
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.5
    """Share of values dropped behind the first hidden layer, and behind CNN4's fourth convolution."""

    def build(self, shape: Shape, outputs: int) -> nn.Module:
        """Return the layers in order."""
        convs, hidden = TABLE[self.number]
        least = 2 ** sum(conv.pool for conv in convs)
        check_images(self.name, shape, least)
        layers: Chain = OrderedDict()
        width = shape[0]
        for number, conv in enumerate(convs, 1):
            self._conv(layers, number, conv, width)
            width = self._wide(conv.channels)
        layers["flatten"] = nn.Flatten()
        self._dense(layers, hidden, width * (shape[1] // least) * (shape[2] // least), outputs)
        return nn.Sequential(layers)

    def _conv(self, layers: Chain, number: int, conv: Conv, inputs: int) -> None:
        channels = self._wide(conv.channels)
        layers[f"conv{number}"] = nn.Conv2d(inputs, channels, conv.kernel, padding=conv.kernel // 2)
        if conv.norm:
            layers[f"norm{number}"] = nn.BatchNorm2d(channels)
        if conv.pool:
            layers[f"pool{number}"] = nn.MaxPool2d(2)
        layers[f"relu{number}"] = nn.ReLU()
        if conv.dropout:
            layers[f"dropout{number}"] = nn.Dropout(self.dropout)

    def _dense(self, layers: Chain, hidden: tuple[int, ...], width: int, outputs: int) -> None:
        for number, size in enumerate(hidden, 1):
            layers[f"hidden{number}"] = nn.Linear(width, self._wide(size))
            layers[f"hidden{number}_relu"] = nn.ReLU()
            if number == 1:
                layers["dropout"] = nn.Dropout(self.dropout)
            width = self._wide(size)
        layers["head"] = nn.Linear(width, outputs)

    def _wide(self, size: int) -> int:
        return max(1, round(size * self.width))
