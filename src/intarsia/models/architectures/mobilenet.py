"""MobileNetV2, and its published weights from TensorFlow's names and layouts."""

from __future__ import annotations

import hashlib
import re
import zipfile
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor, nn

from intarsia.core import SettingsError, part
from intarsia.models.architectures.chains import Chain, check_images, with_pooled_head
from intarsia.models.spec import Architecture, Shape

STAGES = ((16, 1, 1), (24, 2, 2), (32, 3, 2), (64, 4, 2), (96, 3, 1), (160, 3, 2), (320, 1, 1))
"""Channels, blocks and stride of each stage at width 1 (Sandler et al. 2018, Table 2)."""
WIDTHS = (0.35, 0.5, 0.75, 1.0, 1.3, 1.4)
"""The widths that weights were published for."""
EXPANSION = 6
EPSILON = 1e-3


class Symmetric(nn.Module):
    """Values of 0 ... 1 become -1 ... 1, as the published weights want them."""

    def forward(self, x: Tensor) -> Tensor:
        """Return 2x - 1."""
        return 2 * x - 1


class InvertedResidual(nn.Module):
    """Expand by a 1x1 convolution, filter each channel by a 3x3 one, project back; a shortcut if shapes allow."""

    def __init__(
        self, inputs: int, outputs: int, stride: int, expansion: int, size: Shape, momentum: float
    ) -> None:
        super().__init__()
        inner = inputs * expansion
        layers: Chain = OrderedDict()
        if expansion > 1:
            layers |= _layer("expand", nn.Conv2d(inputs, inner, 1, bias=False), momentum)
        layers |= _spatial("depthwise", inner, inner, stride, size, momentum, groups=inner)
        layers |= _layer("project", nn.Conv2d(inner, outputs, 1, bias=False), momentum, relu=False)
        self.way = nn.Sequential(layers)
        self.shortcut = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        """Return what the way gives, with the input added where shapes allow."""
        y: Tensor = self.way(x)
        return x + y if self.shortcut else y


@part
class MobileNetV2(Architecture):
    """MobileNetV2 (Sandler et al. 2018) as Keras builds it, so that its published weights fit and mean the same.

    Inputs lie in 0 ... 1 (images with `standardise = false`); the network itself maps them to -1 ... 1. Layers
    with a stride pad as TensorFlow does: one more row and column after than before where the size is even.
    """

    name: ClassVar[str] = "mobilenet_v2"
    summary: ClassVar[str] = (
        "MobileNetV2 of any width; published ImageNet weights fit (intarsia weights convert)"
    )

    width: Annotated[float, Field(gt=0)] = 1.0
    """What all channels are multiplied by, then rounded to multiples of 8."""
    stride: Literal[1, 2] = 2
    """Stride of the stem (published: 2; 1 keeps more of small images)."""
    momentum: Annotated[float, Field(gt=0, le=1)] = 0.1
    """Share of a new batch in the running statistics (0.001 was used for the published weights)."""

    def build(self, shape: Shape, outputs: int) -> nn.Module:
        """Return the network; parts `stem`, `block1` ... `block17`, `last`, `head`."""
        check_images(self.name, shape, 8 * self.stride)
        size: Shape = shape[1:]
        inputs = divisible(32 * self.width)
        layers: Chain = OrderedDict(scale=Symmetric())
        layers["stem"] = nn.Sequential(
            _spatial("conv", shape[0], inputs, self.stride, size, self.momentum, groups=1)
        )
        size = _halved(size, self.stride)
        for number, (channels, stride) in enumerate(self._blocks(), 1):
            expansion = 1 if number == 1 else EXPANSION
            layers[f"block{number}"] = InvertedResidual(
                inputs, channels, stride, expansion, size, self.momentum
            )
            size, inputs = _halved(size, stride), channels
        features = divisible(1280 * max(1.0, self.width))
        layers["last"] = nn.Sequential(
            _layer("conv", nn.Conv2d(inputs, features, 1, bias=False), self.momentum)
        )
        return with_pooled_head(layers, features, outputs)

    def _blocks(self) -> list[tuple[int, int]]:
        """Return channels and stride of every block."""
        return [
            (divisible(int(channels * self.width)), stride if i == 0 else 1)
            for channels, blocks, stride in STAGES
            for i in range(blocks)
        ]


def divisible(channels: float) -> int:
    """Return the multiple of 8 nearest to a number of channels, not more than a tenth below it."""
    rounded = max(8, int(channels + 4) // 8 * 8)
    return rounded + 8 if rounded < 0.9 * channels else rounded


def _halved(size: Shape, stride: int) -> Shape:
    return tuple(-(-side // stride) for side in size)


def _layer(name: str, conv: nn.Conv2d, momentum: float, relu: bool = True) -> Chain:
    """Return a convolution and its norm, by name, and the ReLU6 behind them."""
    layers: Chain = OrderedDict({name: conv})
    layers[f"{name}_norm"] = nn.BatchNorm2d(conv.out_channels, EPSILON, momentum)
    if relu:
        layers[f"{name}_relu"] = nn.ReLU6()
    return layers


def _spatial(
    name: str, inputs: int, outputs: int, stride: int, size: Shape, momentum: float, groups: int
) -> Chain:
    """Return a 3x3 convolution padded as TensorFlow does for inputs of this size."""
    before = [1 if stride == 1 else side % 2 for side in size]
    layers: Chain = OrderedDict()
    padding = 1
    if before != [1, 1]:
        layers[f"{name}_pad"] = nn.ZeroPad2d((before[1], 1, before[0], 1))
        padding = 0
    conv = nn.Conv2d(inputs, outputs, 3, stride, padding, groups=groups, bias=False)
    layers |= _layer(name, conv, momentum)
    return layers


_NORM = {
    "gamma": "weight",
    "beta": "bias",
    "moving_mean": "running_mean",
    "moving_variance": "running_var",
}
_ENDS = {
    "Conv1": "stem.conv",
    "bn_Conv1": "stem.conv_norm",
    "Conv_1": "last.conv",
    "Conv_1_bn": "last.conv_norm",
}
_BLOCK = re.compile(
    r"(?:block_(?P<number>\d+)|expanded_conv)_(?P<step>expand|depthwise|project)(?P<norm>_BN)?"
)


def mobilenet_from_tensorflow(source: Path | Mapping[str, NDArray[Any]]) -> dict[str, Tensor]:
    """Return the tensors of a MobileNetV2 under our names and layouts, from TensorFlow's (an `.npz` file).

    Kernels go from height, width, inputs, outputs (depthwise: channels, 1) to outputs first. A classifier
    (`predictions`) is left out; any other tensor that is not known is an error.
    """
    arrays = source if isinstance(source, Mapping) else _arrays(source)
    where = "the weights given" if isinstance(source, Mapping) else str(source)
    tensors = {}
    for name, array in arrays.items():
        layer, _, kind = name.removesuffix(":0").rpartition("/")
        layer = layer.rpartition("/")[2]
        if layer in ("predictions", "Logits"):
            continue
        tensors[_our_name(layer, kind, where, name)] = _our_layout(kind, array)
    return tensors


def mobilenet_base(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the tensors of a whole MobileNetV2 in TensorFlow's names, and a card without what it cannot know."""
    tensors = mobilenet_from_tensorflow(path)
    options = {"width": published_width(tensors, str(path))}
    statistics = sum(t.numel() for name, t in tensors.items() if ".running_" in name)
    card = {
        "architecture": {"name": MobileNetV2.name, "options": options},
        "parameters": sum(t.numel() for t in tensors.values()) - statistics,
        "statistics": statistics,
        "inputs": "unit",
        "source": path.name,
        "source_sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
    }
    return tensors, card


def published_width(tensors: Mapping[str, Tensor], where: str) -> float:
    """Return the published width that all of a MobileNetV2's tensors fit."""
    shapes = {name: t.shape for name, t in tensors.items()}
    for width in WIDTHS:
        state = MobileNetV2(width=width).build((3, 32, 32), 1).state_dict()
        wanted = {n: t.shape for n, t in state.items() if t.is_floating_point() and not n.startswith("head.")}
        if wanted == shapes:
            return width
    raise SettingsError(
        f"{where} is no whole MobileNetV2 of a published width ({', '.join(map(str, WIDTHS))}): "
        f"it has {len(shapes)} tensors of a MobileNetV2, 260 are wanted"
    )


def _our_name(layer: str, kind: str, where: str, name: str) -> str:
    block = _BLOCK.fullmatch(layer)
    if block is not None:
        number = int(block["number"] or 0) + 1
        ours = f"block{number}.way.{block['step']}{'_norm' if block['norm'] else ''}"
    else:
        ours = _ENDS.get(layer, "")
    end = (
        _NORM.get(kind)
        if ours.endswith("_norm")
        else {"kernel": "weight", "depthwise_kernel": "weight"}.get(kind)
    )
    if not ours or end is None:
        raise SettingsError(f"{where}: '{name}' is no tensor of a MobileNetV2 in TensorFlow's names")
    return f"{ours}.{end}"


def _our_layout(kind: str, array: NDArray[Any]) -> Tensor:
    order = {"kernel": (3, 2, 0, 1), "depthwise_kernel": (2, 3, 0, 1)}.get(kind)
    moved = array if order is None else array.transpose(order)
    return torch.from_numpy(np.ascontiguousarray(moved, dtype=np.float32))


def _arrays(path: Path) -> dict[str, NDArray[Any]]:
    try:
        with np.load(path, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    except FileNotFoundError:
        raise SettingsError(f"weights: there is no file {path}") from None
    except (OSError, ValueError, AttributeError, zipfile.BadZipFile) as error:
        raise SettingsError(f"weights: {path} is no .npz file: {error}") from error
