"""Flower's own SuperNode with shorter waits that runs the installed relay alone, whatever app the SuperLink sends.

Flower 1.41's SuperNode loads the Python that came with an app, looks for messages every 3 s and starts a new
interpreter for each one. Here it looks several times a second, and each message gets a fork of a process that has flwr
and the relay loaded already: still a process of its own, but one that starts in a few milliseconds. Everything else is
Flower's code, and all its options work. Imports no torch (`without_torch.py`).
"""

from __future__ import annotations

import argparse
import os
import sys
import time
import traceback
from functools import partial
from typing import Any

from intarsia.flower.superexec import (
    HOST,
    QUIET,
    Relays,
    free_port,
    only_the_relay,
    put_in_place,
    start_superexec,
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
    os.environ.update(QUIET)
    os.environ["FLWR_SUPEREXEC_TASK_POLL_INTERVAL"] = str(max(0.01, mine.poll / 2))
    port = mine.port or free_port()
    agent = mine.agent if mine.agent.rpartition(":")[2].isdigit() else os.path.abspath(mine.agent)
    token = os.path.abspath(mine.token) if mine.token else ""
    secret = _start_executor(port, mine.poll)
    sys.argv = [
        "flower-supernode",
        *rest,
        *("--host", HOST, "--port", str(port), "--isolation", "process"),
        *("--superexec-auth-secret-file", secret),
        *("--node-config", f'agent="{agent}" token="{token}"'),
    ]
    _start_node(mine.poll)


def _start_executor(port: int, poll: float) -> str:
    """Fork the process that takes tasks from the SuperNode, with all that a ClientApp needs loaded."""
    import flwr.app
    import flwr.clientapp  # noqa: F401
    from flwr.supercore.inflatable.inflatable_utils import pull_and_inflate_object_from_tree
    from flwr.supernode.runtime import run_clientapp

    only_the_relay()
    hasty = partial(pull_and_inflate_object_from_tree, initial_backoff=poll / 4)
    put_in_place(run_clientapp, pull_and_inflate_object_from_tree=hasty)
    return start_superexec(port, Relays())


def _start_node(poll: float) -> None:
    from flwr.supercore.inflatable.inflatable_utils import pull_objects
    from flwr.supernode import start_client_internal
    from flwr.supernode.cli.flower_supernode import flower_supernode

    hasty = partial(pull_objects, initial_backoff=poll / 4)
    put_in_place(start_client_internal, time=Hasty(poll), pull_objects=hasty)
    try:
        flower_supernode()
    except Exception:  # noqa: BLE001 - the thread of Flower's API would keep the process, with nobody to serve
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
