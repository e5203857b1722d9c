"""What a step of the benchmarks' CNN cannot do without: its bare operations, one by one, on one core.

`python benchmarks/floor.py`: microseconds a sample. No autograd, no batches to pick, nothing to merge: no engine can
be faster than their sum divided by the number of cores, as long as convolutions are computed directly.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from intarsia.training import tune_allocator

SHAPES = {"cifar-b20": (20, 3, 32), "cifar-b50": (50, 3, 32), "mnist-b16": (16, 1, 28)}
REPEATS = 40


def microseconds(operation: Callable[[], object], samples: int) -> float:
    """Return the median time of an operation, a sample."""
    times = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        operation()
        times.append(time.perf_counter() - start)
    return statistics.median(times) / samples * 1e6


def images(*shape: int) -> Tensor:
    """Return random images, or kernels, with the channels last."""
    return torch.randn(*shape).mul_(0.1).contiguous(memory_format=torch.channels_last)


def operations(batch: int, channels: int, size: int) -> dict[str, Callable[[], object]]:
    """Return the operations of one step, forward and back, on inputs of the right shapes."""
    aten = torch.ops.aten
    x, w1, w2 = images(batch, channels, size, size), images(32, channels, 5, 5), images(64, 32, 5, 5)
    first = functional.conv2d(x, w1, padding=2)
    half, chosen1 = aten.max_pool2d_with_indices(first, 2)
    second = functional.conv2d(half, w2, padding=2)
    quarter, chosen2 = aten.max_pool2d_with_indices(second, 2)
    flat = quarter.flatten(1)
    w3, slope = torch.randn(512, flat.shape[1]).mul_(0.01), torch.randn(batch, 512)

    def convolution_back(grad: Tensor, inputs: Tensor, weight: Tensor, wanted: list[bool]) -> object:
        return aten.convolution_backward(
            grad, inputs, weight, [len(weight)], [1, 1], [2, 2], [1, 1], False, [0, 0], 1, wanted
        )

    def pool_back(grad: Tensor, inputs: Tensor, chosen: Tensor) -> object:
        return aten.max_pool2d_with_indices_backward(
            grad, inputs, [2, 2], [2, 2], [0, 0], [1, 1], False, chosen
        )

    return {
        "convolutions, forward": lambda: (
            functional.conv2d(x, w1, padding=2),
            functional.conv2d(half, w2, padding=2),
        ),
        "convolutions, back": lambda: (
            convolution_back(first, x, w1, [False, True, True]),
            convolution_back(second, half, w2, [True, True, True]),
        ),
        "pooling, both ways": lambda: (
            aten.max_pool2d_with_indices(first, 2),
            aten.max_pool2d_with_indices(second, 2),
            pool_back(half, first, chosen1),
            pool_back(quarter, second, chosen2),
        ),
        "hidden layer, both ways, descent folded in": lambda: (
            functional.linear(flat, w3),
            slope @ w3,
            w3.addmm_(slope.t(), flat, alpha=-1e-9),
        ),
    }


def main() -> None:
    """Print the table."""
    torch.set_num_threads(1)
    tune_allocator()
    for name, (batch, channels, size) in SHAPES.items():
        found = {what: microseconds(do, batch) for what, do in operations(batch, channels, size).items()}
        print(
            f"{name}: {sum(found.values()):.0f} us a sample: "
            + ", ".join(f"{k} {v:.0f}" for k, v in found.items())
        )


if __name__ == "__main__":
    main()
