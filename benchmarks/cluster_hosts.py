"""Two hosts for the engine `dask`, as network namespaces of this machine: `python -m benchmarks.cluster_hosts`.

The scheduler, the run and one worker are at one host, another worker is at the other, behind a link; its disk does not
show the run's folder. Every trial is one run to which something happens in its midst; its tables must be those of the
engine `local`, bit for bit. It needs Linux, root, `ip` (iproute2) and, for the trials of firewalls, `nft`. Whatever it
makes (namespaces, processes) is gone when it ends. One line of JSON a trial.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from intarsia.flower.operating import certs

ROOT = Path(__file__).parents[1]
NET = "10.213.77"
HERE, THERE = f"{NET}.1", f"{NET}.2"
PORT = 8786
WORKER_PORT = 40000
TABLES = ("metrics.jsonl", "traffic.jsonl", "groups.jsonl", "notes.jsonl")
METHODS: dict[str, list[str]] = {
    "fedavg": ["method=fedavg", "sampling.clients=12", "rounds=4", "training.batched=false"],
    "fedper": ["method=fedper", "sampling.clients=12", "rounds=4", "training.batched=false"],
    "fedmn": [
        "method=fedmn",
        "model={name='module_pool', features=16, hidden=16}",
        "sampling.clients=12",
        "rounds=3",
    ],
    "pfedclub": [
        "method=pfedclub",
        "population.generations=['8x8']",
        "population.public=0.05",
        "population.models=['short', 'long']",
        "models.short={name='mlp', hidden=[16]}",
        "models.long={name='mlp', hidden=[20, 12]}",
        "method.tailoring.epochs=1",
        "method.search.most=2",
        "sampling.clients=8",
        "rounds=2",
    ],
}
LONG = ["method=fedper", "sampling.clients=12", "rounds=10", "training.batched=false", "training.epochs=40"]
DEADLINE = 420.0
"""Seconds until a run that goes on is said to hang."""


@dataclass
class Hosts:
    """Two namespaces that can reach each other, and nobody else."""

    folder: Path
    names: tuple[str, str] = field(init=False)
    stack: ExitStack = field(default_factory=ExitStack)

    def __post_init__(self) -> None:
        self.names = (f"intarsia-a-{os.getpid()}", f"intarsia-b-{os.getpid()}")

    def __enter__(self) -> Hosts:
        for name in self.names:
            ip("netns", "add", name)
            self.stack.callback(ip, "netns", "del", name)
        here, there = self.names
        ip("-n", here, "link", "add", "ia0", "type", "veth", "peer", "name", "ia0", "netns", there)
        for name, address in zip(self.names, (HERE, THERE), strict=True):
            ip("-n", name, "addr", "add", f"{address}/24", "dev", "ia0")
            for link in ("lo", "ia0"):
                ip("-n", name, "link", "set", link, "up")
        return self

    def __exit__(self, *_: object) -> None:
        self.stack.close()

    def start(self, host: int, name: str, *command: str, **environment: str) -> subprocess.Popen[bytes]:
        """Start a process at a host, in a folder of its own; the other's folders are not to be seen there."""
        own, other = self.folder / str(host), self.folder / str(1 - host)
        for folder in (own / name, own / "tmp", other):
            folder.mkdir(parents=True, exist_ok=True)
        hide = f"mount -t tmpfs none {other} && exec nice -n 10 setpriv --pdeathsig KILL -- " + '"$@"'
        path = os.pathsep.join(filter(None, [str(ROOT / "src"), os.environ.get("PYTHONPATH")]))
        with (own / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                ["ip", "netns", "exec", self.names[host], "sh", "-c", hide, name, *command],
                cwd=own / name,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env={**os.environ, "PYTHONPATH": path, "TMPDIR": str(own / "tmp"), **QUIET, **environment},
            )
        self.stack.callback(ended, process)
        return process

    def cut(self) -> None:
        """Cut the link, without a word to either side."""
        ip("-n", self.names[1], "link", "set", "ia0", "down")

    def silence(self) -> None:
        """Drop all that the second host sends and is sent; its link stays up."""
        rules = ["add table inet silence"]
        for hook in ("input", "output"):
            rules.append(
                f"add chain inet silence {hook} {{ type filter hook {hook} priority 0; policy drop; }}"
            )
            rules.append(f"add rule inet silence {hook} {hook[0]}if lo accept")
        run("ip", "netns", "exec", self.names[1], "nft", "; ".join(rules))

    def guard(self) -> None:
        """Let the second host take nothing from the first but what is meant for dask's ports; drop all else."""
        ports = f"{WORKER_PORT}-{WORKER_PORT + 99}"
        rules = [
            "add table inet guard",
            "add chain inet guard input { type filter hook input priority 0; policy drop; }",
            "add rule inet guard input iif lo accept",
            f"add rule inet guard input tcp dport {ports} accept",
            f"add rule inet guard input tcp sport {{ {PORT}, {ports} }} accept",
            "add rule inet guard input tcp flags syn counter drop",
        ]
        run("ip", "netns", "exec", self.names[1], "nft", "; ".join(rules))

    def dropped(self) -> int:
        """Return how often the guard let nobody in."""
        command = ["ip", "netns", "exec", self.names[1], "nft", "list", "chain", "inet", "guard", "input"]
        told = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        return int(re.findall(r"counter packets (\d+)", told)[0])


QUIET = {
    "DASK_DISTRIBUTED__WORKER__PROFILE__ENABLED": "False",
    "OMP_NUM_THREADS": "1",
    "NO_COLOR": "1",
    "COLUMNS": "200",
}


def run(*command: str) -> None:
    """Run a command; it must go well."""
    subprocess.run(command, check=True, capture_output=True)


def ip(*words: str) -> None:
    """Run `ip`."""
    run("ip", *words)


def ended(process: subprocess.Popen[bytes]) -> None:
    """End a process and those that it started, if they are there."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


@dataclass
class Trial:
    """A cluster on two hosts, and a run on it."""

    hosts: Hosts
    tls: Path | None = None
    scheduler: subprocess.Popen[bytes] = field(init=False)
    workers: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def address(self) -> str:
        """Where the scheduler is."""
        return f"{'tls' if self.tls else 'tcp'}://{HERE}:{PORT}"

    @property
    def _files(self) -> list[str]:
        if self.tls is None:
            return []
        pairs = (("tls-ca-file", "ca.crt"), ("tls-cert", "server.pem"), ("tls-key", "server.key"))
        return [word for option, name in pairs for word in (f"--{option}", str(self.tls / name))]

    def begin(self) -> None:
        """Start the scheduler and both workers."""
        self.start_scheduler()
        for host in (0, 1):
            self.start_worker(host)
        logs = [
            self.hosts.folder / str(host) / f"worker-{len(self.workers) - 2 + host}.log" for host in (0, 1)
        ]
        while not all("Registered to" in log.read_text() for log in logs):
            time.sleep(0.1)

    def start_scheduler(self) -> None:
        """Start the scheduler, at the first host."""
        words = [
            "scheduler",
            "--host",
            HERE,
            "--port",
            str(PORT),
            "--protocol",
            self.address[:3],
            "--no-dashboard",
        ]
        self.scheduler = self.hosts.start(0, "scheduler", *DASK, *words, *self._files)

    def start_worker(self, host: int) -> None:
        """Start a worker of one thread."""
        own = (HERE, THERE)[host]
        ports = ["--worker-port", f"{WORKER_PORT}:{WORKER_PORT + 49}"]
        ports += ["--nanny-port", f"{WORKER_PORT + 50}:{WORKER_PORT + 99}"]
        words = ["worker", self.address, "--host", own, "--nworkers", "1", "--nthreads", "1", *ports]
        words += ["--memory-limit", "2GiB", "--no-dashboard", "--local-directory", "scratch"]
        self.workers.append(
            self.hosts.start(host, f"worker-{len(self.workers)}", *DASK, *words, *self._files)
        )

    def play(self, name: str, *words: str) -> subprocess.Popen[bytes]:
        """Start `intarsia` at the first host."""
        return self.hosts.start(0, name, sys.executable, "-m", "intarsia", *words)

    def engine(self) -> list[str]:
        """Return options that name the cluster."""
        words = ["--scheduler", self.address]
        if self.tls:
            files = {"ca": "ca.crt", "certificate": "server.pem", "key": "server.key"}
            words += [w for key, file in files.items() for w in ("--set", f"engine.{key}={self.tls / file}")]
        return words

    @property
    def runs(self) -> Path:
        """Where runs lie."""
        return self.hosts.folder / "0" / "runs"


DASK = (sys.executable, "-m", "dask")
Happens = Callable[[Trial], None]


def rounds(folder: Path) -> int:
    """Return how many rounds a run's tables tell of."""
    try:
        return len((folder / "seconds.jsonl").read_bytes().splitlines())
    except OSError:
        return 0


def awaited(process: subprocess.Popen[bytes], happened: Callable[[], bool]) -> None:
    """Wait until something has happened, or a process has ended."""
    while process.poll() is None and not happened():
        time.sleep(0.02)


def run_of(trial: Trial, name: str, changes: list[str], happens: Happens | None, at: int) -> dict[str, Any]:
    """Play a run, let something happen after so many rounds, and say how it went."""
    folder, begun = trial.runs / name, time.monotonic()
    sets = [word for change in changes for word in ("--set", change)]
    words = ["run", "quickstart", *sets, *trial.engine(), "--out", str(folder), "--no-page"]
    process = trial.play(name, *words)
    told: dict[str, Any] = {}
    if happens is not None:
        awaited(process, lambda: rounds(folder) >= at)
        time.sleep(0.1)
        happens(trial)
        happened, before = time.monotonic(), rounds(folder)
        awaited(process, lambda: rounds(folder) > before)
        told["seconds until a round ended after it"] = round(time.monotonic() - happened, 1)
    try:
        code = process.wait(DEADLINE)
    except subprocess.TimeoutExpired:
        ended(process)
        code = None
    log = (trial.hosts.folder / "0" / f"{name}.log").read_text().strip()
    events = (
        [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
        if folder.exists()
        else []
    )
    return {
        "code": code,
        "seconds": round(time.monotonic() - begun, 1),
        **told,
        "events": [event["message"] for event in events if event["kind"] in ("died", "failed", "refused")],
        "said": log.splitlines()[-1] if log and code else "",
    }


def like_local(trial: Trial, name: str, changes: list[str]) -> bool:
    """Return whether a run's tables are those of the engine `local`."""
    whole = trial.hosts.folder.parent / "local" / name
    if not whole.exists():
        sets = [word for change in changes for word in ("--set", change)]
        words = [
            "run",
            "quickstart",
            *sets,
            "--engine",
            "local",
            "--workers",
            "1",
            "--out",
            str(whole),
            "--no-page",
            "-q",
        ]
        run(sys.executable, "-m", "intarsia", *words)
    there = trial.runs / name
    return all((there / table).read_bytes() == (whole / table).read_bytes() for table in TABLES)


def kill(trial: Trial) -> None:
    """Kill the second host's worker and its nanny."""
    os.killpg(trial.workers[1].pid, signal.SIGKILL)


def cut(trial: Trial) -> None:
    """Cut the link."""
    trial.hosts.cut()


def silence(trial: Trial) -> None:
    """Drop all packets of the second host."""
    trial.hosts.silence()


def kill_scheduler(trial: Trial) -> None:
    """Kill the scheduler."""
    os.killpg(trial.scheduler.pid, signal.SIGKILL)


def plain(hosts: Hosts, tls: bool = False) -> Iterator[dict[str, Any]]:
    """Nothing happens."""
    certificates = hosts.folder / "certs" if tls else None
    if certificates:
        certs.make(certificates, [], (HERE, THERE))
    trial = Trial(hosts, certificates)
    trial.begin()
    for name, changes in METHODS.items():
        told = run_of(trial, name, changes, None, 0)
        yield {"method": name, **told, "bits": like_local(trial, name, changes)}


def encrypted(hosts: Hosts) -> Iterator[dict[str, Any]]:
    """Nothing happens, with TLS."""
    yield from plain(hosts, tls=True)


def guarded(hosts: Hosts) -> Iterator[dict[str, Any]]:
    """A firewall drops, at the second host, what is not for dask's ports."""
    hosts.guard()
    for told in plain(hosts):
        yield {**told, "calls dropped": hosts.dropped()}


def disturbed(happens: Happens) -> Callable[[Hosts], Iterator[dict[str, Any]]]:
    """Return the trial in which something happens in the midst of a run."""

    def play(hosts: Hosts) -> Iterator[dict[str, Any]]:
        trial = Trial(hosts)
        trial.begin()
        told = run_of(trial, "long", LONG, happens, 3)
        yield {**told, "bits": like_local(trial, "long", LONG) if told["code"] == 0 else None}

    return play


def without_scheduler(hosts: Hosts) -> Iterator[dict[str, Any]]:
    """The scheduler is killed in the midst of a run; the run goes on when there is another."""
    trial = Trial(hosts)
    trial.begin()
    yield run_of(trial, "long", LONG, kill_scheduler, 3)
    trial.begin()
    begun = time.monotonic()
    process = trial.play(
        "resume", "resume", str(trial.runs / "long"), "--scheduler", trial.address, "--no-page"
    )
    code = process.wait(DEADLINE)
    yield {
        "resumed": code,
        "seconds": round(time.monotonic() - begun, 1),
        "bits": like_local(trial, "long", LONG),
    }


TRIALS: dict[str, Callable[[Hosts], Iterator[dict[str, Any]]]] = {
    "plain": plain,
    "tls": encrypted,
    "kill": disturbed(kill),
    "cut": disturbed(cut),
    "silence": disturbed(silence),
    "firewall": guarded,
    "scheduler": without_scheduler,
}


def main() -> int:
    """Try, and say what came of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", nargs="+", choices=TRIALS, default=list(TRIALS))
    parser.add_argument("--keep", type=Path, help="a folder for runs and logs, kept")
    options = parser.parse_args()
    good = True
    with tempfile.TemporaryDirectory() as scratch:
        folder = (options.keep or Path(scratch)).absolute()
        for name in options.trials:
            shutil.rmtree(folder / name, ignore_errors=True)
            with Hosts(folder / name) as hosts:
                for told in TRIALS[name](hosts):
                    print(json.dumps({"trial": name, **told}), flush=True)
                    good &= told.get("bits") is not False
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
