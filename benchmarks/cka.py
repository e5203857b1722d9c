"""How much faster all pairs of blocks are compared at once than pair by pair: `python benchmarks/cka.py`.

    python benchmarks/cka.py [--zoo III] [--samples 512] [--repeats 5]

Features are those of untrained models of a zoo. Both ways are timed in turn, on one thread; the figures are
medians, and the largest difference between the two results.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from intarsia.data import ZOOS
from intarsia.methods.pfedclub.cka import block_features, linear_cka
from intarsia.methods.pfedclub.decompose import decompose
from intarsia.models import NAMED
from intarsia.models.spec import Spec

SHAPE, OUTPUTS = (3, 32, 32), 10


def pair_by_pair(features: Sequence[Tensor]) -> NDArray[np.float64]:
    """Return the linear CKA of every two features, each by its formula."""
    values = np.zeros((len(features), len(features)))
    for i, x in enumerate(features):
        for j, y in enumerate(features):
            values[i, j] = alignment(x.double(), y.double())
    return values


def alignment(x: Tensor, y: Tensor) -> float:
    x, y = x - x.mean(0), y - y.mean(0)
    cross, own, other = (torch.linalg.norm(product) for product in (y.T @ x, x.T @ x, y.T @ y))
    return float(cross**2 / (own * other)) if own * other > 0 else 0.0


def features_of(name: str, samples: int) -> list[Tensor]:
    """Return what goes into and out of every block of a zoo's models."""
    x = torch.rand(samples, *SHAPE, generator=torch.Generator().manual_seed(0))
    models = [Spec(NAMED[one], SHAPE, OUTPUTS).build(0) for one in ZOOS[name]]
    for model in models:
        see(model, x[:64])
    return [f for model in models for f in block_features(decompose(model, SHAPE), x)]


def see(model: nn.Module, x: Tensor) -> None:
    """Let batch norms take their statistics from these samples: without, deep models give hardly any signal."""
    for layer in model.modules():
        if isinstance(layer, nn.BatchNorm2d):
            layer.momentum = 1.0
    with torch.no_grad():
        model.train()(x)


def timed(function: Callable[[Sequence[Tensor]], NDArray[np.float64]], features: Sequence[Tensor]) -> float:
    start = time.perf_counter()
    function(features)
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--zoo", default="III")
    parser.add_argument("--samples", type=int, default=512)
    parser.add_argument("--repeats", type=int, default=5)
    given = parser.parse_args()
    torch.set_num_threads(1)
    features = features_of(given.zoo, given.samples)
    difference = np.abs(linear_cka(features) - pair_by_pair(features)).max()
    times = [(timed(linear_cka, features), timed(pair_by_pair, features)) for _ in range(given.repeats)]
    once, pairs = (statistics.median(column) for column in zip(*times, strict=True))
    ratio = statistics.median(slow / fast for fast, slow in times)
    print(f"zoo {given.zoo}: {len(features)} features of {given.samples} samples")
    print(f"all at once {once * 1e3:.0f} ms, pair by pair {pairs * 1e3:.0f} ms: {ratio:.1f} times as fast")
    print(f"largest difference {difference:.1e}", flush=True)


if __name__ == "__main__":
    main()
