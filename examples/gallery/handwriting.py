"""Handwriting by writer: some write upright, some lean, some turn the sheet; each writer uses some modules of a pool.

A pool has an encoder, four middle blocks and three heads. FedMN's router decides by a writer's data which links are
used; in FedMN+ every writer drops the modules that its own data can do without. Controls: a plain network, alone and
with FedAvg; and FedAvg on the same pool with all links open.

Run it with: python examples/gallery/handwriting.py
"""

from __future__ import annotations

import _show
import torch

import intarsia

SEED, WRITERS, DIGITS, TRAINED = 0, 12, 140, 40
HANDS = {
    "upright": lambda x: x,
    "leaning": lambda x: torch.stack([torch.roll(x[..., r, :], (4 - r) // 2, -1) for r in range(8)], -2),
    "turned": lambda x: x.transpose(-1, -2),
}
SETTINGS = {
    "seed": SEED,
    "rounds": _show.rounds(20),
    "model": {"name": "module_pool", "layers": [1, 4, 3], "features": 64, "hidden": 32, "dropout": 0.0},
    "training": {"lr": 0.2, "epochs": 3, "batch_size": 8},
}
PLAIN = "model={name='mlp', hidden=[64, 32]}"
WAYS = {
    "Local, a plain network": ["method=local", PLAIN],
    "FedAvg, a plain network": ["method=fedavg", PLAIN],
    "FedAvg, the whole pool": ["method=fedavg"],
    "FedMN": ["method=fedmn"],
    "FedMN+": ["method=fedmn+"],
}


def main() -> None:
    """Compare assembled networks with the whole pool, and with plain networks."""
    out, (x, y), data = _show.folder(), _show.digits(SEED), {}
    for number in range(WRITERS):
        hand, own = list(HANDS)[number % 3], slice(number * DIGITS, (number + 1) * DIGITS)
        data[f"writer-{number:02}"] = _show.share(HANDS[hand](x[own]), y[own], TRAINED, cohort=hand)
    runs = {n: intarsia.run(SETTINGS, data=data, changes=way, out=out / n) for n, way in WAYS.items()}
    _show.tell(runs)
    _show.save(_show.curves(runs, "Digits of 12 writers with three hands"), "handwriting")


if __name__ == "__main__":
    main()
