"""Hospitals with different scanners: one base that stays as it is, small adapters for each kind of scanner.

Scanners read pictures plainly, as negatives, or blurred. A base is trained on a public archive of plain pictures.
Adapters learn each scanner beside it: it travels once, after that adapters and the output layer alone do.

Run it with: python examples/gallery/hospitals.py
"""

from __future__ import annotations

import _show
import torch
from torch import nn
from torch.nn.functional import avg_pool2d

import intarsia

SEED, HOSPITALS, ARCHIVE, IMAGES = 0, 12, 600, 99
SCANNERS = {"plain": lambda x: x, "negative": lambda x: 1 - x, "blurred": lambda x: avg_pool2d(x, 3, 1, 1)}
TRAINING = {"lr": 0.05, "epochs": 1, "batch_size": 8}
SETTINGS = {"seed": SEED, "rounds": _show.rounds(20), "training": TRAINING}
BY_SCANNER = ["method=fedavg", "sharing.by=device"]
WAYS = {
    "Local": ["method=local"],
    "FedAvg, one network": ["method=fedavg"],
    "FedAvg, a network a scanner": BY_SCANNER,
    "Adapters, a set a scanner": [*BY_SCANNER, "adapters=parallel", "adapters.init=zero"],
}


def network() -> nn.Module:
    """Return three convolutions and an output layer."""
    sides = [(1, 16, 1), (16, 32, 2), (32, 64, 2)]
    layers = [layer for i, o, s in sides for layer in (nn.Conv2d(i, o, 3, s, 1), nn.ReLU())]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(256, 10))


def main() -> None:
    """Compare adapters with the whole network: what is reached, and what is sent for it."""
    out, (x, y) = _show.folder(), _show.digits(SEED)
    torch.manual_seed(SEED)
    archive = {"archive": _show.share(x[:ARCHIVE], y[:ARCHIVE], train=500)}
    public = intarsia.run({**SETTINGS, "method": "local"}, data=archive, model=network(), out=out / "public")
    base, hospitals = public.client("archive").model(), {}
    for number in range(HOSPITALS):
        scanner, first = list(SCANNERS)[number % 3], ARCHIVE + number * IMAGES
        seen, labels = SCANNERS[scanner](x[first : first + IMAGES]), y[first : first + IMAGES]
        hospitals[f"hospital-{number:02}"] = _show.share(seen, labels, train=40, device=scanner)
    given = {"data": hospitals, "model": base}
    runs = {n: intarsia.run(SETTINGS, **given, changes=way, out=out / n) for n, way in WAYS.items()}
    _show.tell(runs)
    _show.save(_show.curves(runs, "Digits in 12 hospitals with three kinds of scanner"), "hospitals")


if __name__ == "__main__":
    main()
