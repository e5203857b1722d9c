"""The processes of a federation on this machine: SuperLink with TLS, authenticated nodes, site agents, runs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import tomli_w

from intarsia.core import IntarsiaError, harmless
from intarsia.flower import without_torch
from intarsia.flower.operating import certs
from intarsia.flower.operating.app_folder import write_app, write_link
from intarsia.flower.server.app import ENDED
from intarsia.flower.superexec import HOST, QUIET, answers, free_port

LINK = "intarsia"
SERVER_APP = "app_process.py"
LISTENS = "training samples; at"


class ProcessEnded(IntarsiaError):  # noqa: N818
    """A process of the federation that ended by itself."""


@dataclass
class Federation:
    """Processes on loopback, each with a log in the folder; leaving the context ends those still running."""

    folder: Path
    """Certificates, keys, the app, site files and logs."""
    sites: Sequence[str]
    port: int = 0
    environment: dict[str, str] = field(default_factory=dict)
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def __enter__(self) -> Self:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.port = self.port or free_port()
        certs.make(self.folder / "certs", self.sites)
        write_link(self.folder / "flwr", LINK, f"{HOST}:{self.port}", self.folder / "certs" / "ca.crt")
        self.environment = {
            **os.environ,
            **QUIET,
            "FLWR_HOME": str(self.folder / "flwr"),
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}",
            "PYTHONUNBUFFERED": "1",
            "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.1",
        }
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start_link(self, *options: str, database: bool = False) -> None:
        """Start the SuperLink, and wait until it answers."""
        database_option = ("--database", str(self.folder / "link.db")) if database else ()
        where = ("--certs", str(self.folder / "certs"), "--port", str(self.port))
        self._start("link", without_torch.command("operating.link", *where, *database_option, *options))
        self._wait_until(lambda: answers(self.port), "link", f"answer at port {self.port}", 60)

    def register(self, site: str) -> None:
        """Tell the SuperLink a node's public key."""
        self.flwr("supernode", "register", str(self.folder / "certs" / "keys" / f"{site}.pub"), LINK)

    def start_site(self, site: str, wait: bool = True) -> None:
        """Start a site's agent, and wait until it listens."""
        path = self.folder / f"{site}.toml"
        before = self.log(f"site-{site}").count(LISTENS)
        self._start(f"site-{site}", [sys.executable, "-m", "intarsia", "site", str(path)])
        if wait:
            self.wait_for_site(site, before + 1)

    def wait_for_site(self, site: str, count: int = 1) -> None:
        """Wait until a site's agent listens (for the so-manieth time)."""
        self.wait_for_line(f"site-{site}", LISTENS, count=count)

    def start_node(self, site: str, *options: str, port: int = 0, agent: str = "") -> None:
        """Start a site's SuperNode."""
        at, link = agent or str(self.folder / f"{site}.state" / "agent.sock"), f"{HOST}:{port or self.port}"
        credentials = (
            *("--root-certificates", str(self.folder / "certs" / "ca.crt")),
            *("--auth-supernode-private-key", str(self.folder / "certs" / "keys" / site)),
        )
        command = without_torch.command(
            "site.node", "--agent", at, "--superlink", link, *credentials, *options
        )
        self._start(f"node-{site}", command)

    def write_site(self, site: str, table: dict[str, Any]) -> Path:
        """Write a site's file."""
        path = self.folder / f"{site}.toml"
        path.write_text(tomli_w.dumps({"name": site, **table}))
        return path

    def write_app(self, settings: str, config: dict[str, Any]) -> None:
        """Write the app that is run."""
        write_app(self.folder / "federation", settings, config)

    def start_run(self, name: str = "run", **config: object) -> None:
        """Hand the app to the SuperLink; what the ServerApp says goes to the log of this name."""
        changes = [f"{key}={json.dumps(value)}" for key, value in config.items()]
        options = ["--run-config", " ".join(changes)] if changes else []
        self._start(name, ["flwr", "run", str(self.folder / "federation"), LINK, "--stream", *options])

    def wait(self, name: str = "run", seconds: float = 3600.0) -> None:
        """Wait for a run to end well."""

        def ended() -> bool:
            self.check(name)
            return self.processes[name].poll() is not None

        self._wait_until(ended, name, "end", seconds)
        del self.processes[name]
        if ENDED not in self.log(name).splitlines():
            raise IntarsiaError(f"the run failed:\n{self.log(name)[-6000:]}")

    def log(self, name: str) -> str:
        """Return what a process has written so far, as plain text: it may quote other machines."""
        path = self.folder / "logs" / f"{name}.log"
        return harmless(path.read_text(errors="replace")) if path.exists() else ""

    def wait_for_line(self, name: str, text: str, seconds: float = 120.0, count: int = 1) -> None:
        """Wait until a process has written this text so many times."""
        self._wait_until(lambda: self.log(name).count(text) >= count, name, f"write '{text}'", seconds)

    def check(self, but: str = "") -> None:
        """Raise if a process ended by itself."""
        for name in self.processes:
            if name != but:
                self._check_one(name)

    def _check_one(self, name: str) -> None:
        process = self.processes.get(name)
        if process is not None and process.poll() is not None:
            raise ProcessEnded(f"'{name}' ended with code {process.returncode}:\n{self.log(name)[-3000:]}")

    def _wait_until(self, done: Callable[[], bool], name: str, what: str, seconds: float) -> None:
        """Wait until a process has done something; one that ended before, or takes too long, is an error."""
        end = time.monotonic() + seconds
        while not done():
            self._check_one(name)
            if time.monotonic() > end:
                raise TimeoutError(
                    f"'{name}' did not {what} within {seconds:.0f} s:\n{self.log(name)[-3000:]}"
                )
            time.sleep(0.05)

    def end(self, name: str, number: int = signal.SIGTERM) -> None:
        """End one process and what it started, and wait for it."""
        process = self.processes.pop(name)
        if process.poll() is None:
            os.killpg(process.pid, number)
        try:
            process.wait(timeout=15)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        with suppress(ProcessLookupError):  # what is left of its group
            os.killpg(process.pid, signal.SIGKILL)

    def stop(self) -> None:
        """End everything; a second Ctrl-C does not cut this short.

        The ServerApp goes first: it must not play on with the sites that are left. It is ended at once, as its state is
        saved after every round; by itself it would take its time.
        """
        patient = threading.current_thread() is threading.main_thread()
        before = signal.signal(signal.SIGINT, signal.SIG_IGN) if patient else None
        _end_all({pid for pid, command in self.everything().items() if SERVER_APP in command})
        for name in sorted(self.processes, key=lambda n: (n != "link", n.startswith("site"))):
            self.end(name, signal.SIGKILL if name.startswith("node") else signal.SIGTERM)
        _end_all(self.everything())
        if patient:
            signal.signal(signal.SIGINT, before)

    def everything(self) -> dict[int, str]:
        """Return the commands of all processes of this federation, by number, those that Flower started too.

        They are known by their environment, on Linux; elsewhere Flower's own ones end with the link.
        """
        mark = f"FLWR_HOME={self.folder / 'flwr'}\0".encode()
        found = {}
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                if mark in (entry / "environ").read_bytes():
                    found[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            except OSError:
                continue
        return {pid: command for pid, command in found.items() if command and pid != os.getpid()}

    def flwr(self, *arguments: str) -> str:
        """Run a command of Flower; return what it prints."""
        done = subprocess.run(
            ["flwr", *arguments],
            env=self.environment,
            capture_output=True,
            text=True,
            cwd=self.folder,
            check=False,
        )
        if done.returncode != 0:
            raise IntarsiaError(f"flwr {' '.join(arguments)} failed:\n{done.stdout}{done.stderr}")
        return done.stdout

    def _start(self, name: str, command: Sequence[str]) -> None:
        logs = self.folder / "logs"
        logs.mkdir(exist_ok=True)
        with (logs / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                list(command),
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self.folder,
                start_new_session=True,
            )


def _end_all(processes: Iterable[int]) -> None:
    for pid in processes:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
