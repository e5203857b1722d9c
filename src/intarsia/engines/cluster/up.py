"""A cluster on this machine, to try: a scheduler and workers that nobody else can reach, gone when it is closed."""

from __future__ import annotations

import logging
from types import TracebackType
from typing import Any

from intarsia.core import IntarsiaError
from intarsia.engines.cluster.members import the_library

LOOPBACK = "127.0.0.1"
QUIET: dict[str, object] = {
    # Dask listens for browsers whatever it is told: there is nothing for them to see.
    "distributed.scheduler.http.routes": [],
    "distributed.worker.http.routes": [],
    # Nobody looks at a profile of every ten milliseconds.
    "distributed.worker.profile.enabled": False,
    "distributed.admin.system-monitor.gil.enabled": False,
}


class OwnCluster:
    """A scheduler in this process and workers in processes of their own; they end with it, however it ends."""

    def __init__(self, workers: int, port: int = 0, memory: str = "auto") -> None:
        library = the_library()
        import dask

        dask.config.set(QUIET)
        try:
            self._cluster: Any = library.LocalCluster(
                n_workers=workers,
                threads_per_worker=1,
                processes=True,
                host=LOOPBACK,
                scheduler_port=port,
                scheduler_kwargs={"dashboard": False, "dashboard_address": f"{LOOPBACK}:0"},
                worker_dashboard_address=f"{LOOPBACK}:0",
                memory_limit=memory,
                silence_logs=logging.CRITICAL,
            )
            # Of workers that were killed while they started, nobody else starts others.
            self._cluster.adapt(minimum=workers, maximum=workers, interval="1s")
        except (OSError, RuntimeError, ValueError) as error:
            raise IntarsiaError(f"no cluster could be started at {LOOPBACK}, port {port}: {error}") from error

    @property
    def address(self) -> str:
        """Where its scheduler is."""
        return str(self._cluster.scheduler_address)

    def close(self) -> None:
        """End all of it."""
        self._cluster.close()

    def __enter__(self) -> OwnCluster:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
