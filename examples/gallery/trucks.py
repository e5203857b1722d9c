"""Trucks of two generations: old ones have three sensors, new ones nine; two duties, which wear brakes unlike.

ModFL shares the input side of the network with trucks of the same generation, the output side with trucks of the same
duty, whatever their generation. FedAvg can only federate each generation by itself, and mixes the duties.

Run it with: python examples/gallery/trucks.py
"""

from __future__ import annotations

import _show
import torch

import intarsia

SEED, TRUCKS, ROWS, TESTS = 0, 24, 24, 100
SENSORS = {"generation-1": 3, "generation-2": 9}
SETTINGS = {
    "seed": SEED,
    "rounds": _show.rounds(30),
    "model": {"name": "mlp", "hidden": [32, 16]},
    "training": {"lr": 0.1, "epochs": 3, "batch_size": 8},
}


def brakes(truck: int, device: str, duty: str) -> dict[str, object]:
    """Return one truck's readings: what the brakes went through, as its sensors see it; fine, worn soon, or worn."""
    draw = torch.Generator().manual_seed(1000 * SEED + truck)
    through = torch.randn(ROWS + TESTS, 3, generator=draw)  # heat, load, wet roads
    seen = torch.randn(3, SENSORS[device], generator=torch.Generator().manual_seed(SENSORS[device]))
    noise = 0.2 * torch.randn(ROWS + TESTS, SENSORS[device], generator=draw)
    wear = torch.randn(3, 3, generator=torch.Generator().manual_seed({"city": 1, "mountain": 2}[duty]))
    x, y = torch.tanh(through @ seen) + noise, (through @ wear).argmax(1)
    return {"train": (x[:ROWS], y[:ROWS]), "test": (x[ROWS:], y[ROWS:]), "device": device, "cohort": duty}


def main() -> None:
    """Compare ModFL with each truck alone and with each generation by itself."""
    kinds = [(device, duty) for device in SENSORS for duty in ("city", "mountain")]
    fleet = {f"truck-{i:02}": brakes(i, *kinds[i % 4]) for i in range(TRUCKS)}
    ways = {
        "Local: each truck alone": ["method=local"],
        "FedAvg: each generation by itself": ["method=fedavg", "sharing.by=device"],
        "FedPer: its output side at home": ["method=fedper", "sharing.by=device"],
        "ModFL: by generation and by duty": ["method=modfl", "sharing.operation=hidden2"],
    }
    out = _show.folder()
    runs = {
        name: intarsia.run(SETTINGS, data=fleet, changes=way, out=out / way[0]) for name, way in ways.items()
    }
    _show.tell(runs)
    _show.save(_show.curves(runs, "Brakes of 24 trucks: two generations, two duties"), "trucks")


if __name__ == "__main__":
    main()
