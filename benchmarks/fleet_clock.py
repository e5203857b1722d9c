"""Methods in virtual hours on one mixed fleet: `python -m benchmarks.fleet_clock`.

    python -m benchmarks.fleet_clock [--page]

Forty clients hold scikit-learn's digits, seen by sensors of two generations; the old one computes slowly and has a thin
line. Settings are as they stand here, nothing is tuned, three seeds. The record is `benchmarks/fleet_clock.json`; what
is in it is not run again. In the end the tables of `docs/fleet.md` are written anew (`--page`: only that).
"""

from __future__ import annotations

import argparse
import re
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from benchmarks import sections

import intarsia
from intarsia.core import write_atomically

HOME = Path(__file__).parents[1]
RECORD = Path(__file__).with_name("fleet_clock.json")
PAGE = HOME / "docs" / "fleet.md"
SEEDS = (0, 1, 2)
ROUNDS, CLIENTS, BUFFER = 60, 20, 10
TARGETS = (0.7, 0.8, 0.9)
EVERY = 3
FLEET: dict[str, Any] = {
    "latency": 2.0,
    "dropout": 0.02,
    "devices": {
        "8x8": {
            "speed": {"name": "lognormal", "median": 2e6, "sigma": 0.5},
            "down": {"name": "lognormal", "median": 2e4, "sigma": 0.5},
            "up": {"name": "lognormal", "median": 1e4, "sigma": 0.5},
        },
        "4x4": {
            "speed": {"name": "lognormal", "median": 2e5, "sigma": 0.5},
            "down": {"name": "lognormal", "median": 2e3, "sigma": 0.8},
            "up": {"name": "lognormal", "median": 1e3, "sigma": 0.8},
        },
    },
}
COMMON: dict[str, Any] = {
    "rounds": ROUNDS,
    "sampling": {"clients": CLIENTS},
    "evaluation": {"every": EVERY, "metrics": []},
    "checkpoints": {"every": ROUNDS},
    "population": {"name": "digits", "clients": 40},
    "model": {"name": "mlp", "hidden": [64, 32]},
    "training": {"lr": 0.1, "epochs": 3, "batch_size": 8},
    "fleet": FLEET,
}
ADAPTED = "adapters={name='parallel', rank=4}"
POOL = "model={name='module_pool', layers=[1, 4, 3], features=64, hidden=32, dropout=0.0}"
FLUSHES = ROUNDS * CLIENTS // BUFFER
UNWAITING = [
    "method=fedbuff",
    f"method.buffer={BUFFER}",
    f"rounds={FLUSHES}",
    f"evaluation.every={EVERY * CLIENTS // BUFFER}",
]
"""As many answers of clients as the others have rounds."""
CASES: Mapping[str, Sequence[str]] = {
    "fedavg": ["method=fedavg", "sharing.by=device"],
    "fedavg, the first 20 of 30": ["method=fedavg", "sharing.by=device", "fleet.overselect=1.5"],
    "fedavg, 40 seconds": ["method=fedavg", "sharing.by=device", "fleet.deadline=40"],
    "fedavg, adapters": ["method=fedavg", "sharing.by=device", ADAPTED],
    "fedbuff": [*UNWAITING, "sharing.by=device"],
    "modfl": ["method=modfl"],
    "modfl, adapters": ["method=modfl", ADAPTED],
    "fedbuff, modfl's sharing": [*UNWAITING, "sharing=modfl"],
    "fedmn": ["method=fedmn", POOL, "sharing.encoders_by=device"],
}


def measure(changes: Sequence[str], seed: int) -> dict[str, Any]:
    """Run one case with one seed; return accuracy by virtual hours, bytes, and how many answers counted by device."""
    with tempfile.TemporaryDirectory() as folder:
        settings = {**COMMON, "seed": seed}
        run = intarsia.run(settings, changes=changes, out=Path(folder) / "run", progress=False)
        clock, metrics, sent = run.clock, run.metrics, run.summary["bytes"]
    ends = {row["round"]: row["answered"] / 3600 for row in clock if not row["client"]}
    rounds = sorted({row["round"] for row in metrics if row["split"] == "test"})
    curve = [[round_to(ends[r]), round_to(_mean(metrics, r))] for r in rounds]
    asked = [row for row in clock if row["client"]]
    counted = {
        d: _share([r for r in asked if r["device"] == d]) for d in sorted({r["device"] for r in asked})
    }
    return {"curve": curve, "bytes": sent, "counted": counted}


def _mean(metrics: Sequence[Mapping[str, Any]], round: int) -> float:
    own = [r for r in metrics if (r["round"], r["split"], r["stage"]) == (round, "test", "own")]
    return statistics.fmean(row["accuracy"] for row in own)


def _share(rows: Sequence[Mapping[str, Any]]) -> list[int]:
    """Return how many answers counted, and how many were asked for."""
    return [sum(row["outcome"] == "counted" for row in rows), len(rows)]


def round_to(number: float) -> float:
    """Return a number as it stands in the record."""
    return float(f"{number:.6g}")


def fill(record: Path = RECORD) -> None:
    """Measure what the record lacks."""
    sections.update(record, settings={"common": COMMON, "cases": {k: list(v) for k, v in CASES.items()}})
    for seed in SEEDS:
        for case, changes in CASES.items():
            done, key = sections.read(record).get("runs", {}), f"{case} / {seed}"
            if key not in done:
                done[key] = measure(changes, seed)
                sections.update(record, runs=done)
                print(key, done[key]["curve"][-1], flush=True)


def hours_to(curve: Sequence[Sequence[float]], target: float) -> float | None:
    """Return after how many virtual hours an accuracy was first reached (None: never)."""
    return next((hours for hours, accuracy in curve if accuracy >= target), None)


def row(case: str, runs: Mapping[str, Any]) -> str:
    """Return the line of a case."""
    own = [runs[f"{case} / {seed}"] for seed in SEEDS]
    method, comma, rest = case.partition(",")
    link = f"[`{method}`](methods/{method.replace('+', '_plus')}.md){comma}{rest}"
    last = [run["curve"][-1] for run in own]
    accuracy = [100 * point[1] for point in last]
    spread = f"{statistics.mean(accuracy):.1f} ± {statistics.stdev(accuracy):.1f} %"
    reached = [_reached([hours_to(run["curve"], target) for run in own]) for target in TARGETS]
    sent = statistics.mean(sum(run["bytes"].values()) for run in own) / 1e6
    whole = statistics.mean(point[0] for point in last)
    return f"| {link} | {' | '.join(reached)} | {spread} | {whole:.2f} | {sent:.1f} |"


def _reached(hours: Sequence[float | None]) -> str:
    """Return the mean of hours, if every seed has some; else how many have."""
    there = [each for each in hours if each is not None]
    if len(there) < len(hours):
        return f"{len(there)} of {len(hours)} seeds"
    return f"{statistics.mean(there):.2f} ± {statistics.stdev(there):.2f}"


def table(record: Mapping[str, Any]) -> str:
    """Return the table of the page."""
    targets = " | ".join(f"hours to {100 * target:.0f} %" for target in TARGETS)
    head = f"| method | {targets} | accuracy in the end | hours in all | MB in all |"
    return "\n".join(
        [head, "|---" * (len(TARGETS) + 4) + "|", *(row(case, record["runs"]) for case in CASES)]
    )


def written(page: str, record: Mapping[str, Any]) -> str:
    """Return the page with its table made anew."""
    place = re.search(r"(<!-- hours -->\n).*?(<!-- end of hours -->)", page, re.DOTALL)
    if place is None:
        raise ValueError(f"{PAGE} has no place for the table")
    return f"{page[: place.end(1)]}{table(record)}\n{page[place.start(2) :]}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--page", action="store_true", help="measure nothing, write the page's table")
    if not parser.parse_args().page:
        torch.set_num_threads(1)
        fill()
    write_atomically(PAGE, written(PAGE.read_text(), sections.read(RECORD)).encode())


if __name__ == "__main__":
    main()
