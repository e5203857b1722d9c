"""Phones with unlike models: small, medium and large networks, whose weights cannot be averaged.

pFedClub's server takes the models apart into blocks, groups blocks that do alike work on public data, and stitches
from them a teacher for each phone. FedMD sends no models: phones learn from each other's answers to the public data.

Run it with: python examples/gallery/phones.py
"""

from __future__ import annotations

import _show

import intarsia

SETTINGS = {
    "seed": 0,
    "rounds": _show.rounds(12),
    "population": {
        "name": "digits",
        "clients": 24,
        "cohorts": 1,
        "labels": 10,
        "generations": ["8x8"],
        "public": 0.2,
        "models": ["small", "medium", "large"],
    },
    "models": {
        "small": {"name": "mlp", "hidden": [16]},
        "medium": {"name": "mlp", "hidden": [32, 16]},
        "large": {"name": "mlp", "hidden": [64, 32, 16]},
    },
    "training": {"lr": 0.1, "epochs": 5, "batch_size": 8},
}
METHODS = {"Local": "local", "FedMD": "fedmd", "pFedClub": "pfedclub"}


def main() -> None:
    """Compare teachers made of blocks with each phone alone, and with answers instead of models."""
    out = _show.folder()
    runs = {
        name: intarsia.run(SETTINGS, changes=[f"method={method}"], out=out / method)
        for name, method in METHODS.items()
    }
    _show.tell(runs)
    sizes = {name: about["model"] for name, about in runs["Local"].population["clients"].items()}
    for model in SETTINGS["models"]:
        own = {client for client, size in sizes.items() if size == model}
        scores = (f"{name} {_show.mean(run, own):.1f} %" for name, run in runs.items())
        print(f"  {model:6} models: {', '.join(scores)}")
    _show.save(_show.curves(runs, "Digits on 24 phones with networks of three sizes"), "phones")


if __name__ == "__main__":
    main()
