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
from contextlib import suppress
from pathlib import Path
from typing import Any

from flwr.supercore.constant import TaskType
from flwr.supercore.superexec.executor import ExecutionSpec, LaunchResult, SubprocessExecutor

HOST = "127.0.0.1"
QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
}
"""Set for everything that we start: no telemetry, no update check, nothing installed at run time."""


def put_in_place(module: Any, **parts: Any) -> None:
    """Put parts of ours in the place of Flower's; one that is not there ends the process, since all rests on them."""
    for name, part in parts.items():
        if not hasattr(module, name):
            sys.exit(f"{module.__name__} has no {name}: this version of Intarsia needs flwr 1.41")
        setattr(module, name, part)


class Relays(SubprocessExecutor):
    """Runs every task, of whatever kind, as the installed relay, in a fork of this process."""

    def launch(self, spec: ExecutionSpec) -> LaunchResult:
        """Run Flower's ClientApp process in a fork."""
        if os.fork() == 0:
            _be_relay(spec)
        return LaunchResult.accepted()

    def reconcile(self) -> None:
        """Clear away forks that ended."""
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass


class ServerApps(SubprocessExecutor):
    """Runs each ServerApp in a process of its own, and always as the installed one; takes no other tasks."""

    def __init__(self) -> None:
        self._running: list[subprocess.Popen[bytes]] = []

    def get_eligible_capacity(self, supported_task_types: Any, **_: Any) -> tuple[Any, set[str]]:
        """Take ServerApps alone."""
        return supported_task_types & {TaskType.SERVER_APP}, set()

    def launch(self, spec: ExecutionSpec) -> LaunchResult:
        """Start the process; its token goes through its standard input, where no list of processes shows it."""
        script = str(Path(__file__).parent / "server" / "app_process.py")
        where = (spec.runtime_api_address, str(spec.root_certificates_path), str(spec.parent_pid))
        process = subprocess.Popen(
            [sys.executable, "-P", script, *where],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self._running.append(process)
        if process.stdin is not None:
            with process.stdin as stdin:
                stdin.write(spec.token.encode())
        return LaunchResult.accepted()

    def reconcile(self) -> None:
        """Clear away processes that ended."""
        self._running = [process for process in self._running if process.poll() is None]


def _be_relay(spec: ExecutionSpec) -> None:
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

    from intarsia.flower.site import relay

    put_in_place(
        run_clientapp,
        install_from_fab=lambda *_, **__: None,
        get_project_dir=lambda *_, **__: None,
        get_load_client_app_fn=lambda *_, **__: lambda *_: relay.app,
    )


def start_superexec(port: int, executor: SubprocessExecutor, ca: str | None = None) -> str:
    """Start a SuperExec for the Flower process that this one is about to become; it ends with it.

    `ca` is the certificate to check that process by (None: it speaks without TLS, to this machine alone). The path that
    is returned holds, for one reader, the secret that both share: a pipe, so that nothing lies on a disk.
    """
    from flwr.supercore.superexec import run_superexec

    parent, secret = os.getpid(), secrets.token_bytes(32)
    if os.fork() != 0:
        end, start = os.pipe()
        os.write(start, secret)
        os.close(start)
        return f"/dev/fd/{end}"
    put_in_place(run_superexec, get_executor=lambda *_, **__: executor)
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
    while not answers(port):
        if os.getppid() != parent:
            os._exit(0)
        time.sleep(0.05)


def answers(port: int) -> bool:
    """Return whether something listens at a port of this machine."""
    with socket.socket() as probe:
        return probe.connect_ex((HOST, port)) == 0


def free_port() -> int:
    """Return a port on loopback that nobody uses."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])
