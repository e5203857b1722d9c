"""Real federations on loopback for the tests: SuperLink, nodes, agents, flwr run."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import tomli_w

import intarsia

pytest.importorskip("flwr", reason="needs Flower: pip install 'intarsia[flower]'")

from intarsia.flower.operating.processes import SERVER_APP, Federation

SMALL: dict[str, Any] = {
    "name": "small",
    "rounds": 2,
    "population": {"name": "digits", "clients": 8, "cohorts": 2},
    "model": {"name": "mlp", "hidden": [16]},
    "training": {"lr": 0.1, "batch_size": 16},
    "sharing": {"by": "device"},
}
NORTH = ["client-00", "client-03", "client-04", "client-07"]
SOUTH = ["client-01", "client-02", "client-05", "client-06"]


class Trial(Federation):
    """A federation for tests: two sites with four clients each, and runs that are compared with local ones."""

    def write(self, site: str, clients: list[str], **more: Any) -> None:
        """Write the file of a site that holds these clients of the digits."""
        self.write_site(
            site,
            {"population": SMALL["population"], "clients": clients, "workers": 1, "device": "cpu", **more},
        )

    def join(self, site: str, clients: list[str], **more: Any) -> None:
        """Register a site and start its agent and node."""
        self.write(site, clients, **more)
        self.start_site(site, wait=False)
        self.register(site)
        self.start_node(site)
        self.wait_for_site(site)

    def start_other(self, site: str, clients: list[str], agent: str, **more: Any) -> None:
        """Register a site and start its node with an agent of the tests' own."""
        self.write(site, clients, **more)
        self.environment["PYTHONPATH"] = str(Path(__file__).parents[2])
        self._start(f"site-{site}", [sys.executable, "-m", agent, str(self.folder / f"{site}.toml")])
        self.wait_for_site(site)
        self.register(site)
        self.start_node(site)

    def prepare(self, run: str, changes: dict[str, Any], **config: Any) -> Path:
        """Write the app of a run; return its folder."""
        settings = {**SMALL, **changes}
        app = self.folder / "federation"
        shutil.rmtree(app, ignore_errors=True)
        folder = self.folder / "runs" / run
        keys = str(self.folder / "certs" / "keys")
        self.write_app(
            tomli_w.dumps(settings),
            {"folder": str(folder), "sites": 2, "wait": 120.0, "deadline": 120.0, "keys": keys, **config},
        )
        return folder

    def play(self, run: str, changes: dict[str, Any], **config: Any) -> intarsia.Run:
        """Run to the end."""
        folder = self.prepare(run, changes, **config)
        self.start_run(f"run-{run}")
        self.wait(f"run-{run}", 240)
        return intarsia.open_run(folder)

    def play_again(self, run: str, **config: Any) -> intarsia.Run:
        """Go on with a run that was stopped, to the end."""
        self.start_run(f"run-{run}-again", **config)
        self.wait(f"run-{run}-again", 240)
        return intarsia.open_run(self.folder / "runs" / run)

    def server_app(self) -> int:
        """Return the process of the ServerApp."""
        end = time.monotonic() + 60
        while time.monotonic() < end:
            for pid, command in self.everything().items():
                if SERVER_APP in command:
                    return pid
            time.sleep(0.1)
        raise TimeoutError("there is no ServerApp")


def locally(out: Path, changes: dict[str, Any]) -> intarsia.Run:
    """Run the same settings with worker processes of this machine."""
    engine = {"name": "local", "workers": 1, "device": "cpu"}
    return intarsia.run({**SMALL, **changes, "engine": engine}, out=out)


def same(one: intarsia.Run, other: intarsia.Run) -> bool:
    """Return whether two runs have the same metrics and verdicts, byte for byte."""
    tables = ("metrics.jsonl", "judged.jsonl")
    mine, yours = ([(run.path / table).read_bytes() for table in tables] for run in (one, other))
    return mine == yours and all(mine)


def wait_until(true: Callable[[], bool], seconds: float) -> None:
    """Wait until something is so."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it did not come about in time"
        time.sleep(0.1)


def make_trial(*sites: str) -> Iterator[Trial]:
    # A short path: that of a Unix socket is limited.
    folder = Path(tempfile.mkdtemp(prefix="int-"))
    try:
        with Trial(folder, sites) as trial:
            trial.start_link()
            yield trial
        wait_until(lambda: not trial.everything(), 20)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def federation() -> Iterator[Trial]:
    """Two sites that stay for many runs."""
    for trial in make_trial("north", "south", "stranger", "unlisted", "unknown"):
        trial.join("north", NORTH)
        trial.join("south", SOUTH)
        yield trial


@pytest.fixture
def trial() -> Iterator[Trial]:
    """A federation of its own, with a SuperLink and keys; sites are started by the test."""
    yield from make_trial("north", "south", "east")


def kill(pid: int) -> None:
    """End a process at once, as a power cut would."""
    os.kill(pid, signal.SIGKILL)
