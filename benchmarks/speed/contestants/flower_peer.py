"""Flower's simulation: `unshare -n python -m benchmarks.speed.contestants.flower_peer FOLDER`.

Its own FedAvg strategy and Ray backend, one virtual node a client, one CPU and one thread a running client. Ray looks
for outside addresses when it starts, so it is started only where there is no network but `lo`.
"""

from __future__ import annotations

import fcntl
import os
import socket
import struct
import sys
import time
from collections.abc import Iterable
from pathlib import Path

from benchmarks.speed.contestants.serving import Turns
from benchmarks.speed.task import Task

QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DISABLE_IMPORT_WARNING": "1",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}


def isolate() -> None:
    """Bring `lo` up; refuse to go on if there is any other interface."""
    others = [name for _, name in socket.if_nameindex() if name != "lo"]
    if others:
        sys.exit(f"Ray is not started: there are other interfaces than lo ({', '.join(others)})")
    get_flags, set_flags, up = 0x8913, 0x8914, 0x1
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as handle:
        asked = struct.pack("16sh14x", b"lo", 0)
        flags = struct.unpack("16sh14x", fcntl.ioctl(handle, get_flags, asked))[1]
        fcntl.ioctl(handle, set_flags, struct.pack("16sh14x", b"lo", flags | up))


def main() -> None:
    """Run the simulation; its strategy plays the protocol after every round."""
    isolate()
    os.environ |= QUIET
    turns = Turns()
    from benchmarks.speed.contestants import flower_app
    from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
    from flwr.serverapp import Grid, ServerApp
    from flwr.serverapp.strategy import FedAvg
    from flwr.simulation import run_simulation

    task = Task(Path(sys.argv[1]))
    os.environ[flower_app.FOLDER] = str(task.folder)
    latest = ArrayRecord(task.weights)

    class Scheduled(FedAvg):
        """FedAvg with the clients of the task's rounds instead of drawn ones."""

        def configure_train(
            self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
        ) -> Iterable[Message]:
            nodes = sorted(grid.get_node_ids())
            for slot, client in enumerate(task.cohorts[server_round - 1].tolist()):
                told = ConfigRecord({"round": server_round - 1, "slot": slot})
                yield Message(RecordDict({"arrays": arrays, "config": told}), nodes[client], "train")

        def configure_evaluate(
            self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
        ) -> Iterable[Message]:
            if task.evaluates(server_round):
                for client, node in enumerate(sorted(grid.get_node_ids())):
                    told = ConfigRecord({"client": client})
                    yield Message(RecordDict({"arrays": arrays, "config": told}), node, "evaluate")

    def after(server_round: int, arrays: ArrayRecord) -> None:
        nonlocal latest
        latest = arrays
        if server_round == 0:
            turns.begin(lambda: latest.to_torch_state_dict())
        else:
            turns.done()

    server = ServerApp()

    @server.main()
    def run(grid: Grid, context: Context) -> None:
        while len(list(grid.get_node_ids())) < task.about["clients"]:
            time.sleep(0.05)
        strategy = Scheduled(fraction_train=1.0, fraction_evaluate=1.0)
        strategy.start(grid=grid, initial_arrays=latest, num_rounds=task.about["capacity"], evaluate_fn=after)

    run_simulation(
        server_app=server,
        client_app=flower_app.app,
        num_supernodes=task.about["clients"],
        backend_config={
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
            "init_args": {"num_cpus": len(os.sched_getaffinity(0)), "include_dashboard": False},
        },
    )


if __name__ == "__main__":
    main()
