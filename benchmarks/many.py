"""1,000 and 100,000 clients, 50 a round: `python -m benchmarks.many`.

    python -m benchmarks.many         both sizes in turns, each run in a process of its own: start, time of a round,
                                      memory, what a checkpoint writes, what the run folder holds
    python -m benchmarks.many long    2,000 rounds with 100,000 clients: the folder, memory and time of a round
    python -m benchmarks.many page    put the figures of the record into docs/speed.md

Clients are made up when they are needed (population `synthetic`). The record is `benchmarks/many.json`. Needs Linux.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks import sections
from benchmarks.secure_sums_docs import table

import intarsia
from intarsia.core import write_atomically

RECORD = Path(__file__).with_suffix(".json")
PAGE = Path(__file__).parents[1] / "docs" / "speed.md"
METHODS = ("fedavg", "fedper")
SIZES = (1_000, 100_000)
WARM = 5
"""Rounds that are not timed; nor is the last, after which clients are judged."""
BETWEEN = 20
"""Rounds between two looks at what checkpoints write."""
TICKS = os.sysconf("SC_CLK_TCK")


def settings(method: str, size: int, rounds: int) -> dict[str, Any]:
    """Return the settings of one run."""
    return {
        "rounds": rounds,
        "method": method,
        "population": {"name": "synthetic", "clients": size},
        "model": {"name": "mlp", "hidden": [100]},
        "sampling": {"clients": 50},
        "evaluation": {"every": 10, "clients": 100},
        "engine": {"name": "local", "workers": 2, "device": "cpu"},
    }


def workers() -> list[str]:
    """Return the processes that this one started."""
    return Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()


def seconds_of(process: str) -> float:
    """Return the processor time that a process has taken."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def peak_of(process: str) -> float:
    """Return the most memory, in MiB, that a process has held."""
    found = re.search(r"VmHWM:\s+(\d+)", Path(f"/proc/{process}/status").read_text())
    return int(found[1]) / 1024 if found else 0.0


def sizes_in(folder: Path) -> dict[str, int]:
    """Return the bytes of every file in a folder, by its path there."""
    found = {}
    for path in folder.rglob("*"):
        try:
            if path.is_file():
                found[str(path.relative_to(folder))] = path.stat().st_size
        except FileNotFoundError:  # a checkpoint is being written
            continue
    return found


def on_disk(folder: Path) -> int:
    """Return the bytes that a folder's files take of a disk, which gives whole blocks."""
    found = 0
    for path in folder.rglob("*"):
        try:
            found += 512 * path.lstat().st_blocks
        except FileNotFoundError:  # a checkpoint is being written
            continue
    return found


class Watch(intarsia.Observer):
    """Looks at time, memory and files while a run goes on."""

    def __init__(self, folder: Path, looks: Sequence[int]) -> None:
        self.folder, self.looks = folder, set(looks)
        self.begun, self.start = (time.perf_counter(), time.process_time()), (0.0, 0.0)
        self.rounds: list[tuple[float, float]] = []
        """Wall and processor time when each round was done."""
        self.peaks: dict[str, float] = {}
        self.seen: dict[int, dict[str, Any]] = {}
        self.state: dict[str, int] = {}
        """The files of checkpoints at the last look."""
        self.written = 0.0
        """Bytes that a checkpoint adds."""

    def started(self, rounds: int, done: int, clients: int) -> None:
        """Note how long it took to begin."""
        self.start = (time.perf_counter() - self.begun[0], time.process_time() - self.begun[1])

    def round_done(self, report: intarsia.RoundReport) -> None:
        """Note times, and at some rounds memory and files."""
        used = time.process_time() + sum(map(seconds_of, workers()))
        self.rounds.append((time.perf_counter(), used))
        self.peaks = {"server": peak_of("self"), "worker": max(map(peak_of, workers()))}
        if report.round in self.looks:
            self._look(report.round)

    def _look(self, round: int) -> None:
        files = sizes_in(self.folder)
        state = {path: size for path, size in files.items() if path.startswith("state/")}
        tables = sum(size for path, size in files.items() if "/" not in path and path.endswith(".jsonl"))
        self.seen[round] = {"folder": sum(files.values()), "tables": tables, "state": sum(state.values())}
        self.seen[round] |= {"server_mib": round_to(peak_of("self")), "files": len(files)}
        self.seen[round]["disk"] = on_disk(self.folder)
        if round - BETWEEN in self.seen:
            self.written = self._added(state) / BETWEEN
        self.state = state

    def _added(self, state: Mapping[str, int]) -> float:
        """Return the bytes that checkpoints added since the last look: blocks, records, and a manifest each."""
        manifests = {path: size for path, size in state.items() if "checkpoint-" in path}
        others = (size - self.state.get(path, 0) for path, size in state.items() if path not in manifests)
        return sum(size for size in others if size > 0) + BETWEEN * max(manifests.values())


def round_to(number: float, digits: int = 1) -> float:
    """Return a number as the record holds it."""
    return round(number, digits)


def measure(method: str, size: int, rounds: int, looks: Sequence[int]) -> dict[str, Any]:
    """Play one run; return what it took."""
    with tempfile.TemporaryDirectory() as parent:
        folder = Path(parent) / "run"
        watch = Watch(folder, looks)
        run = intarsia.run(settings(method, size, rounds), out=folder, observer=watch)
        walls, used = zip(*watch.rounds[WARM - 1 : -1], strict=True)
        files = sizes_in(folder)
        return {
            "start_seconds": round_to(watch.start[0], 2),
            "start_processor_seconds": round_to(watch.start[1], 2),
            "round_ms": round_to(1000 * statistics.median(b - a for a, b in pairwise(walls))),
            "round_processor_ms": round_to(1000 * (used[-1] - used[0]) / (len(used) - 1), 2),
            "server_mib": round_to(watch.peaks["server"]),
            "worker_mib": round_to(watch.peaks["worker"]),
            "checkpoint_bytes": round(watch.written),
            "folder_bytes": sum(files.values()),
            "population_bytes": files["population.json"],
            "page_bytes": _page(run, folder),
            "quarters_processor_ms": quarters(used),
            "by_round": watch.seen,
        }


def _page(run: intarsia.Run, folder: Path) -> int:
    """Return how large the page about a run is."""
    return intarsia.write_page(run.path, out=folder / "about.html").stat().st_size


def quarters(used: Sequence[float]) -> list[float]:
    """Return the processor time of a round, quarter by quarter."""
    step = (len(used) - 1) // 4
    return [round_to(1000 * (used[(i + 1) * step] - used[i * step]) / step, 2) for i in range(4)]


def in_process(method: str, size: int, rounds: int, looks: Sequence[int]) -> dict[str, Any]:
    """Measure in a process of its own."""
    asked = json.dumps([method, size, rounds, list(looks)])
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.many", "one", asked]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def compare(pairs: int, rounds: int) -> None:
    """Measure both sizes in turns, and write the record after each method."""
    looks = [rounds - BETWEEN - 1, rounds - 1]
    for method in METHODS:
        found: dict[int, list[dict[str, Any]]] = {size: [] for size in SIZES}
        for pair in range(pairs):
            for size in SIZES if pair % 2 == 0 else SIZES[::-1]:
                found[size].append(in_process(method, size, rounds, looks))
                print(method, size, found[size][-1], flush=True)
        sections.update(RECORD, **{method: {"pairs": pairs, "rounds": rounds, **summed_up(found)}})


def summed_up(found: Mapping[int, Sequence[Mapping[str, Any]]]) -> dict[str, Any]:
    """Return the medians of each size, and the medians of the ratios of pairs."""
    plain = [key for key, value in next(iter(found.values()))[0].items() if isinstance(value, int | float)]
    few, many = (found[size] for size in SIZES)
    medians = {
        str(size): {key: statistics.median(one[key] for one in runs) for key in plain}
        for size, runs in found.items()
    }
    pairs = list(zip(few, many, strict=True))
    ratios = {key: [round_to(b[key] / a[key], 3) for a, b in pairs] for key in plain if few[0][key]}
    return {**medians, "ratio": {key: statistics.median(of) for key, of in ratios.items()}, "ratios": ratios}


def long(rounds: int) -> None:
    """Play a long run with all clients."""
    looks = [round(rounds * share) for share in (0.05, 0.25, 0.5, 0.75, 1)]
    found = {method: in_process(method, SIZES[-1], rounds, looks) for method in METHODS}
    sections.update(RECORD, long={"rounds": rounds, **found})


def figures(record: Mapping[str, Any]) -> str:
    """Return the table of both sizes."""
    names = {
        "start_processor_seconds": "start, s of processor time",
        "start_seconds": "start, s on the clock",
        "round_processor_ms": "a round, ms of processor time, all processes",
        "round_ms": "a round, ms on the clock",
        "server_mib": "server's memory, peak, MiB",
        "worker_mib": "a worker's memory, peak, MiB",
        "checkpoint_bytes": "a checkpoint writes, kB",
        "folder_bytes": "run folder, kB",
        "page_bytes": "page, kB",
    }
    rows = []
    for method in METHODS:
        for key, words in names.items():
            each = [record[method][str(size)][key] for size in SIZES]
            told = [f"{value / 1000:,.0f}" if key.endswith("bytes") else f"{value:,.1f}" for value in each]
            rows.append([f"`{method}`", words, *told, f"{record[method]['ratio'][key]:.2f}"])
    return table(["method", "", *(f"{size:,} clients" for size in SIZES), "ratio"], rows)


def filled(page: str, record: Mapping[str, Any]) -> str:
    """Return the page with the tables in their places."""
    for name, text in {"many": figures(record), "long": growth(record)}.items():
        place = re.compile(f"(<!-- {name} -->\n).*?(<!-- /{name} -->)", re.DOTALL)
        page = place.sub(lambda found, text=text: found[1] + text + found[2], page)  # type: ignore[misc]
    return page


def growth(record: Mapping[str, Any]) -> str:
    """Return what a long run holds after some of its rounds."""
    rows = []
    for method in METHODS:
        for at, seen in record["long"][method]["by_round"].items():
            sizes = [f"{seen[key] / 1e6:,.1f}" for key in ("tables", "state", "folder", "disk")]
            rows.append([f"`{method}`", f"{int(at):,}", *sizes, f"{seen['server_mib']:,.0f}"])
    heads = ("tables, MB", "state, MB", "run folder, MB", "on disk, MB")
    return table(["method", "rounds", *heads, "server's memory, MiB"], rows)


def main() -> None:
    """Do what is asked."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", nargs="?", choices=("compare", "long", "page", "one"), default="compare")
    parser.add_argument("asked", nargs="?", default="[]")
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=0)
    args = parser.parse_args()
    if args.what == "one":
        print(json.dumps(measure(*json.loads(args.asked))))
    elif args.what == "page":
        write_atomically(PAGE, filled(PAGE.read_text(), json.loads(RECORD.read_text())).encode())
    elif args.what == "long":
        long(args.rounds or 2000)
    else:
        compare(args.pairs, args.rounds or 41)


if __name__ == "__main__":
    main()
