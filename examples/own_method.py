"""A method of your own in two small classes: FedAvg whose server goes only half of the way.

Run it with: python examples/own_method.py
"""

from __future__ import annotations

import tempfile
from typing import ClassVar

import intarsia


@intarsia.part
class HalfWay(intarsia.Merge):
    """Halfway from the present version to the mean of the updates."""

    name: ClassVar[str] = "half-way"

    step: float = 0.5

    def finish(self, sums: intarsia.Sums, present: intarsia.Block) -> intarsia.Block:
        """Return old + step (mean - old)."""
        mean = intarsia.Merge.finish(self, sums, present)
        return intarsia.Block(
            {
                name: old + self.step * (mean.tensors[name] - old) if old.is_floating_point() else old
                for name, old in present.tensors.items()
            },
            present.buffers,
        )


@intarsia.part
class Careful(intarsia.Method):
    """One model for each group, changed carefully."""

    name: ClassVar[str] = "careful"
    title: ClassVar[str] = "Careful averaging"


def main() -> None:
    """Compare it with FedAvg on the embedded data."""
    with tempfile.TemporaryDirectory() as folder:
        changes = ["rounds=10", "population.clients=20", "sharing.by=device"]
        usual = intarsia.run("quickstart", changes=[*changes, "method=fedavg"], out=f"{folder}/usual")
        careful = intarsia.run(
            "quickstart", changes=changes, method=Careful(merge=HalfWay()), out=f"{folder}/careful"
        )
        print("FedAvg: ", usual.summary["accuracy"])
        print("Careful:", careful.summary["accuracy"])


if __name__ == "__main__":
    main()
