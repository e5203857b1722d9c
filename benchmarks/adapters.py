"""How much faster a client's step is with a frozen base: full training against adapters, interleaved.

Run it with: python benchmarks/adapters.py [--pairs 9] [--size 32]
"""

from __future__ import annotations

import argparse
import statistics
import time

import torch
from torch import nn

from intarsia.models import ResNet, add_adapters


def step_seconds(model: nn.Module, x: torch.Tensor, y: torch.Tensor, steps: int) -> float:
    """Return the CPU seconds of some steps of SGD on the parameters that are trained."""
    weights = [p for p in model.parameters() if p.requires_grad]
    start = time.process_time()
    for _ in range(steps):
        loss = nn.functional.cross_entropy(model(x), y)
        gradients = torch.autograd.grad(loss, weights)
        with torch.no_grad():
            torch._foreach_add_(weights, gradients, alpha=-1e-3)
    return time.process_time() - start


def main() -> None:
    """Print the median ratio of full training to training with adapters."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--pairs", type=int, default=9)
    parser.add_argument("--size", type=int, default=32)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--steps", type=int, default=2)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    full = ResNet().build((3, chosen.size, chosen.size), 10)
    models = [m.to(memory_format=torch.channels_last) for m in (full, add_adapters(full))]
    x = torch.randn(chosen.batch, 3, chosen.size, chosen.size).to(memory_format=torch.channels_last)
    y = torch.randint(10, (chosen.batch,))
    for model in models:
        step_seconds(model, x, y, 1)
    ratios = []
    for pair in range(chosen.pairs):
        order = models if pair % 2 == 0 else models[::-1]
        seconds = {id(model): step_seconds(model, x, y, chosen.steps) for model in order}
        ratios.append(seconds[id(models[0])] / seconds[id(models[1])])
    print(f"full training / adapters, ResNet26 at {chosen.size} px, batch {chosen.batch}: ", end="")
    print(
        f"{statistics.median(ratios):.2f} (from {min(ratios):.2f} to {max(ratios):.2f}, {len(ratios)} pairs)"
    )


if __name__ == "__main__":
    main()
