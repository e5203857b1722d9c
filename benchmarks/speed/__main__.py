"""`python -m benchmarks.speed [--workloads ...] [--peers ...] [--quick]`: measure, and write the page."""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import replace
from pathlib import Path

from benchmarks.speed import federated, page
from benchmarks.speed.federated import Plan
from benchmarks.speed.protocol import ROOT
from benchmarks.speed.results import Results
from benchmarks.speed.studies import STUDIES
from benchmarks.speed.workloads import FEDERATED, LOOPS, PEERS, Workload

QUICK = Plan(pairs=3, repeats=0, quick=True)


def arguments(given: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.speed", description=__doc__)
    parser.add_argument(
        "--workloads", nargs="+", choices=[*FEDERATED, *STUDIES], default=[*FEDERATED, *STUDIES], metavar="NAME",
        help=f"which to run, in this order: {', '.join([*FEDERATED, *STUDIES])} (all)",
    )  # fmt: skip
    parser.add_argument(
        "--peers", nargs="+", choices=[*PEERS, "none"], default=list(PEERS), metavar="NAME",
        help=f"which peers to compare with, or none: {', '.join(PEERS)} (all that can be installed)",
    )  # fmt: skip
    parser.add_argument(
        "--loops", nargs="+", choices=LOOPS, default=list(LOOPS), metavar="NAME",
        help=f"which loops to compare with: {', '.join(LOOPS)} (all)",
    )  # fmt: skip
    parser.add_argument("--pairs", type=int, default=9)
    parser.add_argument("--pfllib", type=Path, help="a checkout of PFLlib")
    parser.add_argument("--fedlab", type=Path, help="a checkout of FedLab")
    parser.add_argument(
        "--quick", action="store_true", help="3 pairs of fewer rounds; results go to benchmarks/.quick"
    )
    parser.add_argument(
        "--page", action="store_true", help="only write the page from the results that are there"
    )
    return parser.parse_args(given)


def quicker(workload: Workload) -> Workload:
    """Return a workload of the same kind that takes a moment."""
    every = 2 if workload.evaluate_every else 0
    small = replace(workload, clients=12, samples=2 * workload.batch, cohort=2, check=1, evaluate_every=every)
    return replace(small, rounds=2)


def measure(name: str, plan: Plan, results: Results) -> None:
    """Run one workload or study, and put its rows into the results."""
    print(name, flush=True)
    start, skipped = time.perf_counter(), dict[str, str]()
    if name in STUDIES:
        rows = STUDIES[name].run(plan)
    else:
        workload = quicker(FEDERATED[name]) if plan.quick else FEDERATED[name]
        rows, skipped = federated.run(workload, plan)
    results.put(rows)
    results.note(name, skipped)
    for row in rows:
        what = f"{row['workload']} against {row['against']}"
        print(f"  {what}: {row['ratio']:.2f} ({row['low']:.2f} - {row['high']:.2f})")
    print(f"  {time.perf_counter() - start:.0f} s", flush=True)


def main() -> None:
    """Measure what is asked for; after each workload the files are up to date."""
    if not sys.platform.startswith("linux"):
        sys.exit("the benchmarks read /proc: they need Linux")
    given = arguments()
    folder = ROOT / "benchmarks" / (".quick" if given.quick else "")
    results, target = (
        Results(folder),
        folder / "benchmarks.md" if given.quick else ROOT / "docs" / "benchmarks.md",
    )
    peers = [peer for peer in given.peers if peer != "none"]
    paths = {name: path for name in ("pfllib", "fedlab") if (path := getattr(given, name)) is not None}
    plan = replace(
        QUICK if given.quick else Plan(pairs=given.pairs), against=(*given.loops, *peers), paths=paths
    )
    for name in [] if given.page else given.workloads:
        measure(name, plan, results)
        target.write_text(page.render(results))
    target.write_text(page.render(results))
    print(f"{target.relative_to(ROOT)} is up to date")


if __name__ == "__main__":
    main()
