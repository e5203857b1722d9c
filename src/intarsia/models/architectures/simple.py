"""Small networks of the field: logistic regression, MLP, and the two-convolution network of FedAvg."""

from __future__ import annotations

import copy
import itertools
import math
from collections import OrderedDict
from typing import ClassVar

from torch import nn

from intarsia.core import part
from intarsia.models.architectures.chains import Chain, Size, add_dense, check_images
from intarsia.models.spec import Architecture, Shape


@part
class Logistic(Architecture):
    """One linear layer."""

    name: ClassVar[str] = "logistic"
    summary: ClassVar[str] = "one linear layer on the flat input"

    def build(self, shape: Shape, outputs: int) -> nn.Module:
        """Return flatten and head."""
        return nn.Sequential(OrderedDict(flatten=nn.Flatten(), head=nn.Linear(math.prod(shape), outputs)))


@part
class MLP(Architecture):
    """Hidden layers with ReLU, then a linear head; parts `hidden1`, `hidden2`, ..., `head`."""

    name: ClassVar[str] = "mlp"
    summary: ClassVar[str] = "hidden layers with ReLU and a linear head"

    hidden: tuple[Size, ...] = (64, 32)
    """Units of each hidden layer."""

    def build(self, shape: Shape, outputs: int) -> nn.Module:
        """Return the layers in order."""
        layers: Chain = OrderedDict(flatten=nn.Flatten())
        width = add_dense(layers, math.prod(shape), self.hidden, "hidden", "relu", nn.ReLU)
        layers["head"] = nn.Linear(width, outputs)
        return nn.Sequential(layers)


@part
class CNN(Architecture):
    """Two 5x5 convolutions, each with 2x2 max pooling, and one hidden layer (McMahan et al. 2017).

    The pooling stands before the ReLU: both orders give the same values, and this one has fewer to clip.
    """

    name: ClassVar[str] = "cnn"
    summary: ClassVar[str] = "two 5x5 convolutions with pooling, one hidden layer (FedAvg's)"

    channels: tuple[Size, Size] = (32, 64)
    """Channels of each convolution."""
    hidden: Size = 512
    """Units of the hidden layer."""
    same: bool = True
    """Whether convolutions keep the height and width (else each takes 4 pixels, as without padding)."""

    def build(self, shape: Shape, outputs: int) -> nn.Module:
        """Return the layers in order."""
        check_images(self.name, shape, 4 if self.same else 16)
        first, second = self.channels
        padding = 2 if self.same else 0
        flat = second * self._side(shape[1]) * self._side(shape[2])
        return nn.Sequential(
            OrderedDict(
                conv1=nn.Conv2d(shape[0], first, 5, padding=padding),
                pool1=nn.MaxPool2d(2),
                relu1=nn.ReLU(),
                conv2=nn.Conv2d(first, second, 5, padding=padding),
                pool2=nn.MaxPool2d(2),
                relu2=nn.ReLU(),
                flatten=nn.Flatten(),
                hidden=nn.Linear(flat, self.hidden),
                relu3=nn.ReLU(),
                head=nn.Linear(self.hidden, outputs),
            )
        )

    def _side(self, length: int) -> int:
        return length // 4 if self.same else ((length - 4) // 2 - 4) // 2


def relu_first(model: nn.Module) -> nn.Module:
    """Return a chain of layers with every ReLU before the max pooling that it followed: same values, slower."""
    if type(model) is not nn.Sequential:
        return model
    layers = list(model.named_children())
    for i, ((_, this), (_, after)) in enumerate(itertools.pairwise(layers)):
        if isinstance(this, nn.MaxPool2d) and isinstance(after, nn.ReLU):
            layers[i : i + 2] = layers[i + 1], layers[i]
    turned = copy.copy(model)
    turned._modules = dict(layers)
    return turned
