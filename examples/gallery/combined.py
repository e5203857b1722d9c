"""Methods combined: whom to share with, what to minimise, how to merge and what to send are four choices.

From FedAvg to a combination that no paper has, one choice after the other: ModFL's sharing (by generation and by
cohort), FedProx's objective, FedNova's merge, adapters beside a frozen network, updates in 8 bits: a setting each.

Run it with: python examples/gallery/combined.py
"""

from __future__ import annotations

import _show

import intarsia

SEED = 0
SETTINGS = [f"seed={SEED}", f"rounds={_show.rounds(30)}", "population.clients=20"]
STEPS = {
    "+ ModFL's sharing": ["method=modfl", "sharing.operation=hidden2"],
    "+ FedProx's objective": ["objective={name='proximal', mu=0.01}"],
    "+ FedNova's merge": ["merge=nova"],
    "+ adapters": ["adapters={name='parallel', rank=8}"],
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
    runs = {n: intarsia.run("quickstart", changes=[*SETTINGS, *way], out=out / n) for n, way in ways.items()}
    _show.tell(runs)
    _show.save(_show.cost(runs, "One choice after the other: 20 clients, two generations"), "combined")


if __name__ == "__main__":
    main()
