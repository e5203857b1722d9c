"""The process of a ServerApp: always the one that is installed here, whatever code the app brings.

A script of its own: heartbeats begin before torch is loaded. `python -P app_process.py ADDRESS CA PARENT`; the token of
the task comes through standard input.
"""

from __future__ import annotations

import sys
from pathlib import Path
from queue import Queue
from typing import Any

SAID: Queue[str | None] = Queue()
"""What the process writes, on its way to the operator's screen."""


def run_installed(grid: Any, context: Any, server_app_dir: str, **_: Any) -> Any:
    """Run the installed ServerApp with the settings of an app (in place of Flower's `run`, which loads its code)."""
    from intarsia.core import IntarsiaError, harmless
    from intarsia.flower.server.app import make_app

    put = SAID.put
    setattr(SAID, "put", lambda text: put(text if text is None else harmless(text)))  # noqa: B010
    try:
        make_app(Path(server_app_dir))(grid=grid, context=context)
    except IntarsiaError as error:
        raise IntarsiaError(harmless(str(error))) from error
    return context


def main(address: str, ca: str, parent: int, token: str) -> None:
    """Be the process of a ServerApp."""
    from flwr.supercore.logger import mirror_output_to_queue, restore_output
    from flwr.superlink.runtime import run_serverapp as process

    module: Any = sys.modules[process.__module__]
    if not hasattr(module, "run_"):
        sys.exit(f"{module.__name__} has no run_: this version of Intarsia needs flwr 1.41")
    module.run_ = run_installed
    mirror_output_to_queue(SAID)
    process(
        address,
        SAID,
        token,
        insecure=False,
        certificates=Path(ca).read_bytes(),
        parent_pid=parent,
        runtime_dependency_install=False,
    )
    restore_output()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.stdin.read().strip())
