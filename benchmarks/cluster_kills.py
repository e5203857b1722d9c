"""Kills a worker with SIGKILL in every round, and compares: `python -m benchmarks.cluster_kills --rounds 20`.

The same run is played three times: by the engine `local` with nobody killed; by `local` and by `dask` (a cluster of
`intarsia cluster up`) with a worker process killed in the midst of every round's training. Tables, shared blocks and
clients' states must be the same, bit for bit. The record is `benchmarks/cluster_kills.json`.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from benchmarks.speed.contestants.ours import with_cluster
from benchmarks.speed.measuring import born, processes, tree
from tests.conftest import SMALL
from tests.golden.plays import digests

import intarsia

RECORD = Path(__file__).with_suffix(".json")
METHODS = ("fedavg", "fedper")
WORKERS = 2
TRAINING = {"lr": 0.1, "batch_size": 16, "batched": False}
"""Clients one by one, so that there are several messages to kill between."""


class Killing(intarsia.Observer):
    """Kills a worker after one of the replies of every round's training, by a seed."""

    def __init__(self, workers: Callable[[], list[int]], seed: int) -> None:
        self.workers, self.seed, self.killed = workers, seed, 0
        self._replies = self._when = 0

    def exchange_started(self, round: int, name: str, clients: int) -> None:
        """Choose the moment."""
        moment = random.Random(f"{self.seed} {round}").randint(1, clients - 1)
        self._replies, self._when = 0, moment if name == "train" else 0

    def replied(self, reply: object) -> None:
        """Kill the oldest, if this is the moment: a cluster's younger ones may still be starting."""
        self._replies += 1
        if self._replies == self._when:
            there = self.workers()
            os.kill(there[0], signal.SIGKILL)
            self.killed += 1


def worker_processes() -> list[int]:
    """Return the worker processes of the engine that plays, of this process or of its cluster, the oldest first."""
    own, known = os.getpid(), processes()
    found = [pid for pid in tree(own, known) if pid != own]
    names = {pid: _words(pid) for pid in found}
    clustered = [pid for pid, words in names.items() if "multiprocessing.spawn" in words]
    forked = [pid for pid in found if known[pid][0] == own and "cluster up" not in names[pid]]
    return sorted(clustered or forked, key=lambda pid: int(born(pid) or 0))


def _words(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
    except OSError:
        return ""


def played(settings: dict[str, Any], out: Path, seed: int | None) -> dict[str, Any]:
    """Play a run, with kills if there is a seed for them; return what it was, and how many were killed and noticed."""
    observer = None if seed is None else Killing(worker_processes, seed)
    with with_cluster(settings) as whole:
        run = intarsia.run(whole, out=out, observer=observer)
    kinds = [event["kind"] for event in run.events]
    noticed = {"killed": observer.killed if observer else 0, "died": kinds.count("died")}
    return {"digests": digests(run), "failed": kinds.count("failed"), **noticed}


def compared(method: str, rounds: int, seed: int, folder: Path) -> list[dict[str, Any]]:
    """Play a method undisturbed, and by both engines with kills; return what differs."""
    base: dict[str, Any] = {**SMALL, "rounds": rounds, "method": method, "training": TRAINING}
    engines = {name: {"name": name, "workers": WORKERS, "device": "cpu"} for name in ("local", "dask")}
    whole = played({**base, "engine": engines["local"]}, folder / "whole", None)
    rows = []
    for name, engine in engines.items():
        other = played({**base, "engine": engine}, folder / name, seed)
        found = [key for key, value in whole["digests"].items() if other["digests"][key] != value]
        counts = {key: other[key] for key in ("killed", "died", "failed")}
        rows.append({"method": method, "engine": name, "rounds": rounds, **counts, "found": found})
    return rows


def main() -> int:
    """Kill, and say what came of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--methods", nargs="+", default=list(METHODS))
    parser.add_argument("--record", type=Path, default=RECORD)
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for method in options.methods:
        with tempfile.TemporaryDirectory() as folder:
            for row in compared(method, options.rounds, options.seed, Path(folder)):
                print(json.dumps(row), flush=True)
                rows.append(row)
        options.record.write_text(json.dumps({"seed": options.seed, "runs": rows}, indent=1) + "\n")
    return 1 if any(row["found"] for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
