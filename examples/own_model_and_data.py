"""Your own model and data: two generations of a truck, one with one sensor, one with three.

Run it with: python examples/own_model_and_data.py
"""

from __future__ import annotations

import tempfile
from typing import Any

import torch
from torch import nn

import intarsia


class Truck(nn.Module):
    """A network with an input side that depends on the sensors, and a head that does not."""

    def __init__(self, sensors: int) -> None:
        super().__init__()
        self.sensing = nn.Sequential(nn.Linear(sensors, 16), nn.ReLU())
        self.deciding = nn.Linear(16, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the logits of "fine" and "worn"."""
        return self.deciding(self.sensing(x))


def brakes(truck: int, sensors: int) -> dict[str, Any]:
    """Readings of one truck: worn brakes run hot, and every truck runs at a temperature of its own."""
    source = torch.Generator().manual_seed(truck)
    worn = torch.randint(0, 2, (80,), generator=source)
    heat = worn + 0.5 * torch.randn(80, generator=source) + 0.3 * truck
    readings = torch.stack([heat + 0.2 * torch.randn(80, generator=source) for _ in range(sensors)], 1)
    return {
        "train": (readings[:60], worn[:60]),
        "test": (readings[60:], worn[60:]),
        "device": f"generation-{sensors}",
    }


def main() -> None:
    """Federate the input side within each generation; keep every truck's decision at home."""
    fleet = {f"truck-{i}": brakes(i, sensors=1 if i < 4 else 3) for i in range(8)}
    settings = {
        "name": "trucks",
        "rounds": 20,
        "method": "fedper",
        "sharing": {"by": "device"},
        "cut": {"base": "sensing.*", "head": "deciding.*"},
        "training": {"lr": 0.1, "batch_size": 10},
    }
    with tempfile.TemporaryDirectory() as folder:
        run = intarsia.run(
            settings, data=fleet, model=lambda truck: Truck(sensors=truck.shape[0]), out=f"{folder}/trucks"
        )
        print("accuracy:", run.summary["accuracy"])
        print("bytes:", run.summary["bytes"])
        print(run.client("truck-5").model())


if __name__ == "__main__":
    main()
