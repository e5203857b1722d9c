"""The networks as one writes them in PyTorch; the same parameter names as the product's, so that weights compare."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor, nn
from torch.nn.functional import max_pool2d


class CNN(nn.Module):
    """Two 5x5 convolutions with ReLU and pooling, one hidden layer (McMahan et al. 2017)."""

    def __init__(self, shape: Sequence[int], outputs: int, pool_first: bool) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(shape[0], 32, 5, padding=2)
        self.conv2 = nn.Conv2d(32, 64, 5, padding=2)
        self.hidden = nn.Linear(64 * (shape[1] // 4) * (shape[2] // 4), 512)
        self.head = nn.Linear(512, outputs)
        self.squash = _squash(pool_first)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits."""
        x = self.squash(self.conv1(x))
        x = self.squash(self.conv2(x))
        return self.head(self.hidden(x.flatten(1)).relu())  # type: ignore[no-any-return]


class SmallKernels(nn.Module):
    """Two 3x3 convolutions without padding, one pooling, one hidden layer: pfl-research's for CIFAR-10."""

    def __init__(self, shape: Sequence[int], outputs: int, pool_first: bool) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(shape[0], 32, 3)
        self.conv2 = nn.Conv2d(32, 64, 3)
        self.hidden = nn.Linear(64 * ((shape[1] - 4) // 2) * ((shape[2] - 4) // 2), 128)
        self.head = nn.Linear(128, outputs)
        self.squash = _squash(pool_first)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits."""
        x = self.conv1(x).relu()
        x = self.squash(self.conv2(x))
        return self.head(self.hidden(x.flatten(1)).relu())  # type: ignore[no-any-return]


class MLP(nn.Module):
    """Hidden layers with ReLU; without any, logistic regression."""

    def __init__(self, shape: Sequence[int], outputs: int, hidden: Sequence[int] = ()) -> None:
        super().__init__()
        widths = [math.prod(shape), *hidden]
        for number, size in enumerate(hidden, 1):
            self.add_module(f"hidden{number}", nn.Linear(widths[number - 1], size))
        self.layers = len(hidden)
        self.head = nn.Linear(widths[-1], outputs)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits."""
        x = x.flatten(1)
        for number in range(1, self.layers + 1):
            x = self.get_submodule(f"hidden{number}")(x).relu()
        return self.head(x)  # type: ignore[no-any-return]


class MotionLSTM(nn.Module):
    """An LSTM and two small layers with tanh, for windows of motion data."""

    def __init__(self, shape: Sequence[int], outputs: int, units: int = 16, width: int = 16) -> None:
        super().__init__()
        self.lstm = nn.LSTM(shape[1], units, batch_first=True)
        self.features1 = nn.Linear(units, width)
        self.operation1 = nn.Linear(width, width)
        self.head = nn.Linear(width, outputs)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits."""
        steps, _ = self.lstm(x)
        return self.head(self.operation1(self.features1(steps[:, -1]).tanh()).tanh())  # type: ignore[no-any-return]


def build(about: Mapping[str, Any], pool_first: bool = False) -> nn.Module:
    """Return the network of a task; `pool_first` pools before the ReLU: same values, fewer to clip."""
    shape, outputs = about["shape"], about["outputs"]
    kinds: dict[str, Callable[[], nn.Module]] = {
        "cnn": lambda: CNN(shape, outputs, pool_first),
        "small_kernels": lambda: SmallKernels(shape, outputs, pool_first),
        "mlp": lambda: MLP(shape, outputs, about["hidden"]),
        "logistic": lambda: MLP(shape, outputs),
        "lstm": lambda: MotionLSTM(shape, outputs),
    }
    return kinds[about["network"]]()


def _squash(pool_first: bool) -> Callable[[Tensor], Tensor]:
    if pool_first:
        return lambda x: max_pool2d(x, 2).relu()
    return lambda x: max_pool2d(x.relu(), 2)
