"""Methods combined: whom to share with, what to minimise, how to merge and what to send are four choices.

From FedAvg to a combination that no paper has, one choice after the other: ModFL's sharing (by generation and by
cohort), FedProx's objective, FedNova's merge, adapters beside a frozen network, updates in 8 bits: a setting each.

Run it with: python examples/gallery/combined.py
"""

from __future__ import annotations

import _show

import intarsia

SETTINGS = {
    "seed": 0,
    "rounds": _show.rounds(20),
    "population": {"name": "digits", "clients": 20},
    "model": {"name": "cnn"},
    "training": {"lr": 0.05, "epochs": 3, "batch_size": 8},
}
STEPS = {
    "+ ModFL's sharing": ["method=modfl", "sharing={}"],
    "+ FedProx's objective": ["objective={name='proximal', mu=0.01}"],
    "+ FedNova's merge": ["merge=nova"],
    "+ adapters": ["adapters=parallel"],
    "+ 8-bit updates": ["codec=int8"],
}


def main() -> None:
    """Add one choice after the other; print what each is worth."""
    out, changes = _show.folder(), []
    ways = {
        "Local": ["method=local"],
        "FedAvg, each generation by itself": ["method=fedavg", "sharing.by=device"],
    }
    for name, choice in STEPS.items():
        changes = [*changes, *choice]
        ways[name] = changes
    runs = {n: intarsia.run(SETTINGS, changes=way, out=out / n) for n, way in ways.items()}
    _show.tell(runs)
    _show.save(
        *_show.bytes_and_accuracy(runs, "One choice after the other: 20 clients, two generations"), "combined"
    )


if __name__ == "__main__":
    main()
