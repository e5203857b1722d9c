"""How much faster a client's step is with a frozen base: full training against adapters, interleaved.

Full training is timed in the layout that the product trains in, and in the one that torch gives a model by itself.

Run it with: python benchmarks/adapters.py [--pairs 9] [--size 32]
"""

from __future__ import annotations

import argparse
import copy
import statistics
import time

import torch
from torch import nn

from intarsia.models import ResNet, add_adapters
from intarsia.training import channels_last_layout


def step_seconds(model: nn.Module, x: torch.Tensor, y: torch.Tensor, steps: int) -> float:
    """Return the CPU seconds of some steps of SGD on the parameters that are trained."""
    weights: list[torch.Tensor] = [p for p in model.parameters() if p.requires_grad]
    start = time.process_time()
    for _ in range(steps):
        loss = nn.functional.cross_entropy(model(x), y)
        gradients = torch.autograd.grad(loss, weights)
        with torch.no_grad():
            torch._foreach_add_(weights, gradients, alpha=-1e-3)
    return time.process_time() - start


def main() -> None:
    """Print the median ratios of full training to training with adapters."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--pairs", type=int, default=9)
    parser.add_argument("--size", type=int, default=32)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--steps", type=int, default=2)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    full = ResNet().build((3, chosen.size, chosen.size), 10)
    x = torch.randn(chosen.batch, 3, chosen.size, chosen.size)
    last = x.to(memory_format=torch.channels_last)
    y = torch.randint(10, (chosen.batch,))
    contestants = {
        "adapters": (channels_last_layout(add_adapters(full)), last),
        "full training": (channels_last_layout(copy.deepcopy(full)), last),
        "full training, torch's layout": (full, x),
    }
    for model, inputs in contestants.values():
        step_seconds(model, inputs, y, 1)
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    for pair in range(chosen.pairs):
        for name in sorted(contestants, reverse=pair % 2 == 1):
            seconds[name].append(step_seconds(*contestants[name], y, chosen.steps))
    print(f"ResNet26 at {chosen.size} px, batch {chosen.batch}, {chosen.pairs} pairs; against adapters:")
    for name in list(contestants)[1:]:
        ratios = [one / other for one, other in zip(seconds[name], seconds["adapters"], strict=True)]
        print(f"  {name}: {statistics.median(ratios):.2f} (from {min(ratios):.2f} to {max(ratios):.2f})")


if __name__ == "__main__":
    main()
