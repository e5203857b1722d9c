"""A new generation of devices joins a federation that has run: it learns faster than from scratch.

Generation 8x8 has trained for 30 rounds. Generation 4x4 comes with an input side of its own; the modules of
its cohorts are there already (`start_from`).

Run it with: python examples/new_generation.py
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import intarsia

MODFL = ["method=modfl", "sharing={}", "sharing.operation=hidden2"]


def accuracy(run: intarsia.Run, device: str) -> float:
    """Return the mean accuracy of a device's clients after the last round."""
    last = run.summary["rounds"]
    clients = {name for name, about in run.population["clients"].items() if about["device"] == device}
    rows = [m for m in run.metrics if m["round"] == last and m["split"] == "test" and m["client"] in clients]
    return sum(row["accuracy"] for row in rows) / len(rows)


def main() -> None:
    """Print how the new generation does after five rounds, with and without the earlier federation."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder)
        first = [*MODFL, 'population.generations=["8x8"]']
        old = intarsia.run("quickstart", changes=first, out=out / "old")
        both = [*MODFL, "rounds=5"]
        joined = intarsia.run("quickstart", changes=[*both, f"start_from={old.path}"], out=out / "joined")
        scratch = intarsia.run("quickstart", changes=both, out=out / "scratch")
        print(f"new generation, joined: mean accuracy {100 * accuracy(joined, '4x4'):.1f} %")
        print(f"new generation, from scratch: mean accuracy {100 * accuracy(scratch, '4x4'):.1f} %")


if __name__ == "__main__":
    main()
