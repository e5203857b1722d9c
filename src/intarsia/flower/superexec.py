"""Our own SuperExec: takes the tasks of a Flower process on this machine, and runs only what is installed here.

Flower's own runs whatever Python an app brings, hands its tasks to any process that asks, and shows the token of each
in the list of processes. This one proves with a secret that it is the one that was started beside the process.
"""

from __future__ import annotations

import os
import secrets
import signal
import socket
import subprocess
import sys
import time
import traceback
from pathlib import Path
from typing import Any, Protocol

HOST = "127.0.0.1"
QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
}
"""Set for everything that we start: no telemetry, no update check, nothing installed at run time."""


class Launcher(Protocol):
    """How a task becomes a process."""

    def launch(self, spec: Any) -> None:
        """Start the process of a task."""

    def tend(self) -> None:
        """Look after the processes that were started."""


class Executor:
    """What Flower's SuperExec asks for: tasks of one kind, each at once, by a launcher of ours."""

    def __init__(self, kinds: frozenset[str], launcher: Launcher) -> None:
        self.kinds, self.launcher = kinds, launcher

    def get_eligible_capacity(self, supported_task_types: Any, **_: Any) -> tuple[Any, set[str]]:
        """Take tasks of our kinds alone."""
        return {kind for kind in supported_task_types if kind in self.kinds}, set()

    def wait_for_capacity(self, *_: Any, **__: Any) -> None:
        """Have room at once."""

    def launch(self, spec: Any) -> Any:
        """Start a task."""
        from flwr.supercore.superexec.executor import LaunchResult

        self.launcher.launch(spec)
        return LaunchResult.accepted()

    def close(self) -> None:
        """Hold nothing."""

    def reconcile(self) -> None:
        """Look after what was started, several times a second."""
        self.launcher.tend()


class Relays:
    """Runs each ClientApp in a fork of this process, and always as the installed relay."""

    def launch(self, spec: Any) -> None:
        """Run Flower's ClientApp process in a fork."""
        if os.fork() == 0:
            _be_relay(spec)

    def tend(self) -> None:
        """Do nothing: the kernel clears away children that ended (see `forked`)."""


class ServerApps:
    """Runs each ServerApp in a process of its own, and always as the installed one."""

    def __init__(self) -> None:
        self._running: list[subprocess.Popen[bytes]] = []

    def launch(self, spec: Any) -> None:
        """Start the process; its token goes through its standard input, where no list of processes shows it."""
        script = str(Path(__file__).with_name("serverapp.py"))
        where = (spec.runtime_api_address, str(spec.root_certificates_path), str(spec.parent_pid))
        process = subprocess.Popen(
            [sys.executable, "-P", script, *where],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        if process.stdin is not None:
            with process.stdin as stdin:
                stdin.write(spec.token.encode())
        self._running.append(process)

    def tend(self) -> None:
        """Clear away those that ended."""
        self._running = [process for process in self._running if process.poll() is None]


def _be_relay(spec: Any) -> None:
    from flwr.supercore.exit import exit_handler
    from flwr.supernode.runtime import run_clientapp

    exit_handler.registered_exit_handlers.clear()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)
    try:
        run_clientapp.run_clientapp(
            spec.runtime_api_address,
            spec.token,
            spec.insecure,
            parent_pid=os.getppid(),
            runtime_dependency_install=False,
        )
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


def only_the_relay() -> None:
    """Let Flower's ClientApp process run the installed relay, and neither unpack nor load the app that was sent."""
    from flwr.supernode.runtime import run_clientapp

    from intarsia.flower import relay

    for name, value in (
        ("install_from_fab", lambda *_, **__: None),
        ("get_project_dir", lambda *_, **__: None),
        ("get_load_client_app_fn", lambda *_, **__: lambda *_: relay.app),
    ):
        setattr(run_clientapp, name, value)


def new_secret() -> bytes:
    """Return a secret that a Flower process and its SuperExec share for as long as they live."""
    return secrets.token_bytes(32)


def as_file(secret: bytes) -> str:
    """Return a path from which this process can read the secret, once: a pipe, so nothing lies on a disk."""
    end, start = os.pipe()
    os.write(start, secret)
    os.close(start)
    return f"/dev/fd/{end}"


def forked(port: int, executor: Executor, secret: bytes, ca: str | None = None) -> None:
    """Start a SuperExec for the Flower process that this one is about to become; it ends with it.

    `ca` is the certificate to check that process by (None: it speaks without TLS, to this machine alone).
    """
    from flwr.supercore.superexec import run_superexec

    parent = os.getpid()
    if os.fork() != 0:
        return
    if isinstance(executor.launcher, Relays):
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    setattr(run_superexec, "get_executor", lambda *_, **__: executor)  # noqa: B010
    try:
        _wait_for(port)
        run_superexec.run_superexec(
            f"{HOST}:{port}",
            insecure=ca is None,
            root_certificates_path=ca,
            superexec_auth_secret=secret,
            parent_pid=parent,
        )
    except Exception:  # noqa: BLE001 - the process ends here; its log says why
        traceback.print_exc()
    finally:
        os._exit(1)


def _wait_for(port: int) -> None:
    parent = os.getppid()
    while os.getppid() == parent:
        with socket.socket() as probe:
            if probe.connect_ex((HOST, port)) == 0:
                return
        time.sleep(0.05)
    os._exit(0)


def free_port() -> int:
    """Return a port on loopback that nobody uses."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])
