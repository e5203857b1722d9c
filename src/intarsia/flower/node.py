"""Flower's own SuperNode with shorter waits: a script of its own that imports flwr and no torch.

Flower 1.41's SuperNode looks for messages every 3 s and starts a new interpreter for each one. Here it looks several
times a second, and each message gets a fork of a process that has flwr loaded already: still a process of its own, but
one that starts in a few milliseconds. Everything else is Flower's code, and all its options work.
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import sys
import time
from functools import partial
from typing import Any

QUIET = (
    "FLWR_TELEMETRY_ENABLED=0",
    "FLWR_DISABLE_UPDATE_CHECK=1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION=1",
)


class Hasty:
    """The module `time` with shorter sleeps: the first look for messages comes soon, later ones less often."""

    def __init__(self, shortest: float, longest: float = 1.0) -> None:
        self.shortest, self.longest = shortest, longest
        self._next = shortest

    def sleep(self, seconds: float) -> None:
        """Sleep as long as the SuperNode waits here: seconds between messages, less for its own processes."""
        if seconds < 1:
            self._next = self.shortest
            time.sleep(min(seconds, 0.05))
        else:
            time.sleep(self._next)
            self._next = min(1.2 * self._next, self.longest)

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)


class ForkExecutor:
    """Runs each ClientApp in a fork of this process (in place of Flower's SubprocessExecutor)."""

    def get_eligible_capacity(self, supported_task_types: Any, **_: Any) -> tuple[Any, set[str]]:
        """Take every kind of task."""
        return supported_task_types, set()

    def wait_for_capacity(self, *_: Any, **__: Any) -> None:
        """Have room at once."""

    def launch(self, spec: Any) -> Any:
        """Run Flower's ClientApp process in a fork."""
        from flwr.supercore.superexec.executor import LaunchResult

        if os.fork() == 0:
            _be_client_app(spec)
        return LaunchResult.accepted()

    def close(self) -> None:
        """Hold nothing."""

    def reconcile(self) -> None:
        """Keep no pool."""


def _be_client_app(spec: Any) -> None:
    from flwr.supercore.exit import exit_handler
    from flwr.supernode.runtime.run_clientapp import run_clientapp

    exit_handler.registered_exit_handlers.clear()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)
    try:
        run_clientapp(spec.runtime_api_address, spec.token, spec.insecure, parent_pid=os.getppid())
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


def main(arguments: list[str]) -> None:
    """Be a SuperNode."""
    parser = argparse.ArgumentParser(
        prog="intarsia flower node", allow_abbrev=False, epilog="All options of flower-supernode."
    )
    parser.add_argument("--agent", required=True, help="The agent's socket, or 127.0.0.1:PORT.")
    parser.add_argument("--token", default="", help="The agent's token file, if it listens on a port.")
    parser.add_argument("--poll", type=float, default=0.2, help="Seconds until the first look for messages.")
    parser.add_argument("--port", type=int, default=0, help="Port on 127.0.0.1 for the node's own processes.")
    mine, rest = parser.parse_known_args(arguments)
    os.environ.update(dict(setting.split("=") for setting in QUIET))
    os.environ["FLWR_SUPEREXEC_TASK_POLL_INTERVAL"] = str(max(0.01, mine.poll / 2))
    port = mine.port or _free_port()
    agent = mine.agent if mine.agent.rpartition(":")[2].isdigit() else os.path.abspath(mine.agent)
    token = os.path.abspath(mine.token) if mine.token else ""
    sys.argv = [
        "flower-supernode",
        *rest,
        *("--host", "127.0.0.1", "--port", str(port), "--isolation", "process"),
        *("--node-config", f'agent="{agent}" token="{token}"'),
    ]
    _start_executor(port, mine.poll)
    _start_node(mine.poll)


def _start_executor(port: int, poll: float) -> None:
    """Fork the process that takes tasks from the SuperNode, with all that a ClientApp needs loaded."""
    import flwr.app
    import flwr.clientapp  # noqa: F401
    from flwr.supercore.inflatable.inflatable_utils import pull_and_inflate_object_from_tree
    from flwr.supercore.superexec import run_superexec
    from flwr.supernode.runtime import run_clientapp

    parent = os.getpid()
    if os.fork() == 0:
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        hasty = partial(pull_and_inflate_object_from_tree, initial_backoff=poll / 4)
        for module, name, value in (
            (run_superexec, "get_executor", lambda *_, **__: ForkExecutor()),
            (run_clientapp, "pull_and_inflate_object_from_tree", hasty),
        ):
            setattr(module, name, value)
        try:
            _wait_for(port)
            run_superexec.run_superexec(f"127.0.0.1:{port}", insecure=True, parent_pid=parent)
        finally:
            os._exit(0)


def _start_node(poll: float) -> None:
    from flwr.supercore.inflatable.inflatable_utils import pull_objects
    from flwr.supernode import start_client_internal
    from flwr.supernode.cli.flower_supernode import flower_supernode

    hasty = partial(pull_objects, initial_backoff=poll / 4)
    for name, value in (("time", Hasty(poll)), ("pull_objects", hasty)):
        setattr(start_client_internal, name, value)
    flower_supernode()


def _wait_for(port: int) -> None:
    parent = os.getppid()
    while os.getppid() == parent:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    os._exit(0)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


if __name__ == "__main__":
    main(sys.argv[1:])
