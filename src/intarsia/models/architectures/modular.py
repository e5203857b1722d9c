"""The networks of ModFL: a configuration side that fits the device, an operation side that fits the task."""

from __future__ import annotations

from collections import OrderedDict
from typing import Annotated, ClassVar, Literal

from pydantic import Field
from torch import Tensor, nn

from intarsia.core import SettingsError, part
from intarsia.models.architectures.chains import Chain, Size, add_dense, check_images
from intarsia.models.spec import Architecture, Shape

Sizes = Annotated[tuple[Size, ...], Field(min_length=1)]


@part
class ModularCNN(Architecture):
    """3x3 convolutions with 2x2 pooling between them, one hidden layer; then the operation layers.

    Liang et al. 2022: for CIFAR-10 channels 32-64-128 with average pooling, for STL-10 16-32-64-128 with
    maximum pooling; both FC 256, then 128-64-9. "Same" padding and the place of the pooling are ours.
    """

    name: ClassVar[str] = "modular_cnn"
    summary: ClassVar[str] = "ModFL's networks for images: convolutions, FC 256 | operation 128-64"

    channels: Sizes = (32, 64, 128)
    """Channels of each convolution."""
    pooling: Literal["average", "max"] = "average"
    """What stands between convolutions."""
    features: Size = 256
    """Units of the last configuration layer."""
    operation: Sizes = (128, 64)
    """Units of each operation layer."""

    def build(self, shape: Shape, outputs: int) -> nn.Module:
        """Return the layers in order; the parts from `operation1` on are the operation module."""
        halvings = len(self.channels) - 1
        check_images(self.name, shape, 2**halvings)
        layers: Chain = OrderedDict()
        width = shape[0]
        for number, size in enumerate(self.channels, 1):
            if number > 1:
                layers[f"pool{number - 1}"] = (
                    nn.AvgPool2d(2) if self.pooling == "average" else nn.MaxPool2d(2)
                )
            layers[f"conv{number}"] = nn.Conv2d(width, size, 3, padding=1)
            layers[f"relu{number}"] = nn.ReLU()
            width = size
        side = [length // 2**halvings for length in shape[1:]]
        layers["flatten"] = nn.Flatten()
        layers["features"] = nn.Linear(width * side[0] * side[1], self.features)
        layers["relu"] = nn.ReLU()
        width = add_dense(layers, self.features, self.operation, "operation", "between", nn.ReLU)
        layers["head"] = nn.Linear(width, outputs)
        return nn.Sequential(layers)


class LastStep(nn.LSTM):
    """An LSTM over (batch, steps, channels) that returns its output after the last step."""

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        """Return the last output."""
        outputs, _ = super().forward(x)
        last: Tensor = outputs[:, -1]
        return last


@part
class ModularLSTM(Architecture):
    """An LSTM and hidden layers with tanh; then the operation layers.

    Liang et al. 2022: for HAPT LSTM 16 and FC 16, for RealWorld LSTM 24 and FC 32-16, for WISDM LSTM 8 and FC
    16; then 16-5.
    """

    name: ClassVar[str] = "modular_lstm"
    summary: ClassVar[str] = "ModFL's networks for motion: LSTM, FC with tanh | operation 16"

    units: Size = 16
    """Units of the LSTM."""
    features: Sizes = (16,)
    """Units of each configuration layer behind the LSTM."""
    operation: Sizes = (16,)
    """Units of each operation layer."""

    def build(self, shape: Shape, outputs: int) -> nn.Module:
        """Return the layers in order; the parts from `operation1` on are the operation module."""
        if len(shape) != 2:
            raise SettingsError(f"model 'modular_lstm' needs inputs (steps, channels), not {list(shape)}")
        layers: Chain = OrderedDict(lstm=LastStep(shape[1], self.units, batch_first=True))
        width = add_dense(layers, self.units, self.features, "features", "tanh", nn.Tanh)
        width = add_dense(layers, width, self.operation, "operation", "between", nn.Tanh)
        layers["head"] = nn.Linear(width, outputs)
        return nn.Sequential(layers)
