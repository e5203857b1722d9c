"""`python -m benchmarks.speed [--workloads ...] [--against ...] [--quick]`: measure, and write the page."""

from __future__ import annotations

import argparse
import signal
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

import intarsia

PUBLISHED = 9
"""Pairs at least; what was measured with fewer is a trial, and goes where trials go."""
TRIALS, QUICK = "benchmarks/.trials", "benchmarks/.quick"


def arguments(given: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.speed", description=__doc__)
    parser.add_argument(
        "--workloads", nargs="+", choices=[*FEDERATED, *STUDIES], default=[*FEDERATED, *STUDIES], metavar="NAME",
        help=f"which to run, in this order: {', '.join([*FEDERATED, *STUDIES])} (all)",
    )  # fmt: skip
    parser.add_argument(
        "--against", nargs="+", choices=[*LOOPS, *PEERS], default=[*LOOPS, *PEERS], metavar="NAME",
        help=f"whom to compare with: {', '.join([*LOOPS, *PEERS])} (all that can take part)",
    )  # fmt: skip
    parser.add_argument(
        "--pairs", type=int, help=f"({PUBLISHED}; with --quick 3); with fewer, results go to {TRIALS}"
    )
    parser.add_argument("--pfllib", type=Path, help="a checkout of PFLlib")
    parser.add_argument("--fedlab", type=Path, help="a checkout of FedLab")
    parser.add_argument(
        "--quick", action="store_true", help=f"only try everything, much smaller; results go to {QUICK}"
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


def plan_of(given: argparse.Namespace) -> Plan:
    """Return how to measure."""
    paths = {name: path for name in ("pfllib", "fedlab") if (path := getattr(given, name)) is not None}
    pairs = given.pairs or (3 if given.quick else PUBLISHED)
    repeats = 3 if pairs >= PUBLISHED and not given.quick else 0
    return Plan(pairs, repeats, tuple(given.against), paths, given.quick)


def measure(name: str, plan: Plan, results: Results) -> None:
    """Run one workload or study, and put its rows into the results."""
    print(name, flush=True)
    start, skipped = time.perf_counter(), dict[str, str]()
    if name in STUDIES:
        rows = STUDIES[name].run(plan)
    else:
        workload = quicker(FEDERATED[name]) if plan.quick else FEDERATED[name]
        rows, skipped = federated.run(workload, plan)
    seconds = time.perf_counter() - start
    results.put(rows)
    whole = name in STUDIES or set(FEDERATED[name].against) <= set(plan.against)
    results.note(name, skipped, seconds if whole else None)
    for row in rows:
        what = f"{row['workload']} against {row['against']}"
        cpu = "" if row["cpu_ratio"] is None else f", CPU {row['cpu_ratio']:.2f}"
        print(f"  {what}: {row['ratio']:.2f} ({row['low']:.2f} - {row['high']:.2f}){cpu}")
    print(f"  {seconds:.0f} s", flush=True)


def measure_all(names: list[str], plan: Plan, results: Results, target: Path) -> list[str]:
    """Measure one after the other, the files up to date after each; return which failed."""
    failed: list[str] = []
    for number, name in enumerate(names):
        try:
            measure(name, plan, results)
        except KeyboardInterrupt:
            left = " ".join([*failed, *names[number:]])
            sys.exit(f'\ninterrupted; what was measured is kept. The rest: make bench WORKLOADS="{left}"')
        except (RuntimeError, ValueError, OSError, intarsia.IntarsiaError) as error:
            print(f"  {name} failed: {error}", flush=True)
            failed.append(name)
        target.write_text(page.render(results))
    return failed


def main() -> None:
    """Measure what is asked for."""
    if not sys.platform.startswith("linux"):
        sys.exit("the benchmarks read /proc: they need Linux")
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    given = arguments()
    plan = plan_of(given)
    apart = QUICK if plan.quick else TRIALS if plan.pairs < PUBLISHED else ""
    results = Results(ROOT / (apart or "benchmarks"))
    target = ROOT / (apart or "docs") / "benchmarks.md"
    names = [] if given.page else given.workloads
    known = results.circumstances.get("seconds", {})
    if names and known.keys() >= set(names):
        print(
            f"this took {page.minutes(sum(known[n] for n in names))} the last time, against everyone",
            flush=True,
        )
    start = time.perf_counter()
    failed = measure_all(names, plan, results, target)
    target.write_text(page.render(results))
    print(f"{target.relative_to(ROOT)} is up to date ({page.minutes(time.perf_counter() - start)})")
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
