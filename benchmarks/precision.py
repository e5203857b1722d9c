"""What bf16 costs in accuracy: FedAvg on real CIFAR-10 in single precision and in bf16, the same seeds.

    python -m benchmarks.precision [--data FOLDER] [--work FOLDER]

The figures go to `benchmarks/precision.json`, and from there into docs/speed.md; the same command goes on where it was
stopped. `--page` only writes the page anew.
"""

from __future__ import annotations

import argparse
import math
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks import sections

import intarsia
from intarsia.core import write_atomically
from intarsia.judging.metrics import Paired, paired
from intarsia.runs import read_versions

ROOT = Path(__file__).parents[1]
RECORD, PAGE = ROOT / "benchmarks" / "precision.json", ROOT / "docs" / "speed.md"
SEEDS = (10, 11, 12)
PRECISIONS = ("fp32", "bf16")
SETTINGS: dict[str, Any] = {
    "name": "precision",
    "rounds": 15,
    "method": "fedavg",
    "population": {"name": "images", "dataset": "cifar10", "clients": 20, "limit": 20_000},
    "model": {"name": "cnn", "channels": [16, 32], "hidden": 128},
    "training": {"lr": 0.05, "batch_size": 20},
    "sampling": {"clients": 10},
    "evaluation": {"every": 15, "metrics": []},
    "checkpoints": {"every": 15},
}
MARKS = ("<!-- precision: begin -->", "<!-- precision: end -->")


def play(precision: str, seed: int, data: str, work: Path) -> dict[str, Any]:
    """Return what one run came to."""
    training = {**SETTINGS["training"], "precision": precision}
    shutil.rmtree(work, ignore_errors=True)
    run = intarsia.run(
        {**SETTINGS, "seed": seed, "data_folder": data, "training": training}, out=work, progress=False
    )
    pooled = [row for row in run.metrics if row["split"] == "test" and row["round"] == SETTINGS["rounds"]]
    return {
        "accuracy": sum(row["correct"] for row in pooled) / sum(row["n"] for row in pooled),
        "loss": sum(row["loss"] * row["n"] for row in pooled) / sum(row["n"] for row in pooled),
        "arithmetic": read_versions(run.path)[-1].get("arithmetic", ""),
    }


def study(data: str, work: Path) -> None:
    """Play what is not in the record yet."""
    for seed in SEEDS:
        for precision in PRECISIONS:
            done, key = sections.read(RECORD).get("runs", {}), f"{precision} / {seed}"
            if key not in done:
                done[key] = play(precision, seed, data, work / "run")
                sections.update(RECORD, settings=SETTINGS, runs=done)
                print(key, done[key], flush=True)


def difference(record: Mapping[str, Any]) -> Paired:
    """Return bf16's accuracy minus that of single precision, in points, paired by seed."""
    bf16, fp32 = ([100 * record["runs"][f"{p} / {s}"]["accuracy"] for s in SEEDS] for p in ("bf16", "fp32"))
    return paired(bf16, fp32, few=True)


def table(record: Mapping[str, Any]) -> str:
    """Return the figures as a table, with a sentence on their difference."""
    lines = ["| | " + " | ".join(f"seed {seed}" for seed in SEEDS) + " |", "|---" * (len(SEEDS) + 1) + "|"]
    for precision in PRECISIONS:
        own = [record["runs"][f"{precision} / {seed}"] for seed in SEEDS]
        cells = [f"{100 * run['accuracy']:.2f} % (loss {run['loss']:.3f})" for run in own]
        lines.append(f"| {precision} | {' | '.join(cells)} |")
    found = difference(record)
    low, high = found.interval or (math.nan, math.nan)
    apart = f"bf16 minus fp32: {found.mean:+.2f} points (95 %, paired by seed: {low:+.2f} to {high:+.2f})."
    return "\n".join([*lines, "", apart])


def written(page: str, record: Mapping[str, Any]) -> str:
    """Return the page with the table of the record between its marks."""
    begin, end = MARKS
    return re.sub(
        f"{re.escape(begin)}.*{re.escape(end)}",
        lambda _: f"{begin}\n{table(record)}\n{end}",
        page,
        flags=re.DOTALL,
    )


def main() -> None:
    """Play the study, and write the page."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.precision", description=__doc__)
    parser.add_argument("--data", default="", help="where the data sets are")
    parser.add_argument("--work", type=Path, default=Path("runs/precision"), help="where runs lie meanwhile")
    parser.add_argument("--page", action="store_true", help="only write the page")
    given = parser.parse_args()
    if not given.page:
        study(given.data, given.work)
    write_atomically(PAGE, written(PAGE.read_text(), sections.read(RECORD)).encode())


if __name__ == "__main__":
    main()
