"""Ends processes of a real federation on loopback with SIGKILL, goes on, compares: `python -m benchmarks.flower_kills`.

Two sites with their agents and nodes, a SuperLink with a database, TLS and keys. In each run one of them is killed at a
random moment, from a seed: a site's agent with its workers, the SuperLink, or the ServerApp. Whatever was killed is
started again, and `flwr run` goes on. Metrics and verdicts must be those of a run on this machine that was never
stopped, byte for byte. Every update is needed (`min_updates`), so that a round waits for all or is played again.
The record is the section `flower` of `benchmarks/kills.json`; the same command goes on where it was stopped.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import tomli_w
from benchmarks import sections
from benchmarks.kills import RECORD

import intarsia
from intarsia.core import IntarsiaError
from intarsia.flower.operating.processes import SERVER_APP, Federation, ProcessEnded

SITES = {"north": ["client-00", "client-03"], "south": ["client-01", "client-02"]}
SETTINGS: dict[str, Any] = {
    "rounds": 5,
    "min_updates": 4,
    "method": "fedper",
    "sharing": {"by": "device"},
    "population": {"name": "digits", "clients": 4, "cohorts": 2},
    "model": {"name": "mlp", "hidden": [16]},
    "training": {"lr": 0.1, "batch_size": 4, "epochs": 3},
}
TARGETS = ("agent", "link", "server app")
TABLES = ("metrics.jsonl", "judged.jsonl")


class Killing(Federation):
    """A federation of two sites whose processes are killed and started again."""

    def begin(self) -> None:
        """Start everything."""
        self.start_link(database=True)
        for site, clients in SITES.items():
            table = {"population": SETTINGS["population"], "clients": clients, "workers": 1, "device": "cpu"}
            self.write_site(site, table)
            self.start_site(site)
            self.register(site)
            self.start_node(site)

    def prepare(self, name: str) -> Path:
        """Write the app of a run; return the run's folder."""
        folder = self.folder / "runs" / name
        shutil.rmtree(self.folder / "federation", ignore_errors=True)
        config = {"folder": str(folder), "sites": 2, "wait": 300.0, "deadline": 120.0}
        self.write_app(tomli_w.dumps(SETTINGS), config)
        return folder

    def kill(self, target: str, site: str) -> None:
        """Kill one of the processes, with what it started."""
        if target == "agent":
            self.end(f"site-{site}", signal.SIGKILL)
        elif target == "link":
            self.end("link", signal.SIGKILL)
        else:
            for pid, command in self.everything().items():
                if SERVER_APP in command:
                    os.kill(pid, signal.SIGKILL)

    def mend(self, target: str, site: str) -> None:
        """Start again what was killed."""
        if target == "agent":
            self.start_site(site)
        elif target == "link":
            self.start_link(database=True)


def killed(federation: Killing, seed: int, number: int, whole: Path) -> dict[str, Any]:
    """Kill, go on, compare."""
    chance = random.Random(f"flower {seed} {number}")
    target, site = TARGETS[number % len(TARGETS)], chance.choice(sorted(SITES))
    after, name = chance.uniform(0, 6), f"run-{number}-{time.time_ns()}"
    folder = federation.prepare(name)
    federation.start_run(name)
    end = time.monotonic() + 180
    while not (folder / "state").exists() and time.monotonic() < end:
        time.sleep(0.05)
    time.sleep(after)
    ended = (folder / "summary.json").exists()
    federation.kill(target, site)
    if target == "agent":
        federation.processes[name].wait(timeout=300)
    else:
        time.sleep(1)
    if name in federation.processes:
        federation.end(name)
    federation.mend(target, site)
    reached = max((int(p.stem[-6:]) for p in (folder / "state").glob("checkpoint-*.json")), default=-1)
    found = _gone_on(federation, name, folder, whole)
    about = {"number": number, "target": target, "site": site if target == "agent" else ""}
    return {**about, "after": round(after, 2), "checkpoint": reached, "had_ended": ended, "found": found}


def _gone_on(federation: Killing, name: str, folder: Path, whole: Path) -> list[str]:
    """Go on until the run has ended, a few times if need be; return what differs."""
    said = ""
    for attempt in range(4):
        try:
            federation.start_run(f"{name}-again-{attempt}")
            federation.wait(f"{name}-again-{attempt}", 300)
            return [t for t in TABLES if (folder / t).read_bytes() != (whole / t).read_bytes()]
        except (ProcessEnded, IntarsiaError, TimeoutError) as error:
            said = str(error)[-300:]
            if f"{name}-again-{attempt}" in federation.processes:
                federation.end(f"{name}-again-{attempt}")
            time.sleep(10)  # a killed node is taken again only after its heartbeat has lapsed
    return [f"it did not go on: {said}"]


def main() -> int:
    """Kill, and say what came of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=9)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--record", type=Path, default=RECORD)
    options = parser.parse_args()
    home = Path(tempfile.mkdtemp(prefix="int-"))
    try:
        engine = {"name": "local", "workers": 1, "device": "cpu"}
        whole = intarsia.run({**SETTINGS, "engine": engine}, out=home / "whole").path
        done = sections.read(options.record).get("flower", [])
        with Killing(home / "f", list(SITES)) as federation:
            federation.begin()
            for number in range(len(done), options.kills):
                done.append(killed(federation, options.seed, number, whole))
                sections.update(options.record, flower=done)
                print(json.dumps(done[-1]), flush=True)
    finally:
        shutil.rmtree(home, ignore_errors=True)
    return 1 if any(kill["found"] for kill in done) else 0


if __name__ == "__main__":
    sys.exit(main())
