"""Two tasks in one federation: one half of the clients names digits, the other counts their closed loops.

The recipe runs ModFL: the input side of the network is shared by all clients of a sensor, whatever their
task; the output side, with 10 or 3 outputs, by those of the same task and cohort.

Run it with: python examples/two_tasks.py
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import intarsia


def main() -> None:
    """Print the accuracy of each task, in one federation and for each client alone."""
    alone = ["method=local", "sharing={}"]
    with tempfile.TemporaryDirectory() as folder:
        together = intarsia.run("two-tasks", out=Path(folder) / "together")
        apart = intarsia.run("two-tasks", changes=alone, out=Path(folder) / "apart")
        for name, run in (("ModFL, both tasks in one federation", together), ("each client alone", apart)):
            for task, scores in run.summary["tasks"].items():
                print(f"{name}, {task}: mean accuracy {100 * scores['accuracy']['mean']:.1f} %")
    print("Blocks:", ", ".join(intarsia.preview("two-tasks")["addresses"]))


if __name__ == "__main__":
    main()
