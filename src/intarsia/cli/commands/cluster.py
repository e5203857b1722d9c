"""`intarsia cluster ...`: a cluster on this machine, to try."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from intarsia.cli.options import command, new_group
from intarsia.cli.terminal import console, interruptible, say

PLACE = 6
NAME = "cluster"
PANEL = "More"
PORT = 8786
group = new_group("Start a cluster on this machine; runs take it by engine.name=dask.")


@command(group, "up", None, "intarsia cluster up --workers 2")
def up_command(
    workers: Annotated[int, typer.Option("--workers", min=0, help="Worker processes (0: one a core).")] = 0,
    port: Annotated[
        int, typer.Option("--port", min=0, max=65535, help="Port of the scheduler (0: any that is free).")
    ] = PORT,
    memory: Annotated[
        str, typer.Option("--memory", help="What a worker may take until it is started anew: 2GB; 0: all.")
    ] = "auto",
) -> None:
    """Start a scheduler and workers that this machine alone can reach; Ctrl-C ends them all."""
    from intarsia.engines import cores
    from intarsia.engines.cluster.up import OwnCluster

    with interruptible(), OwnCluster(workers or cores(), port, memory) as cluster:
        address = cluster.address
        say(f"{workers or cores()} workers at [bold]{address}[/], for this machine alone (Ctrl-C ends them):")
        say(f"  intarsia run quickstart --set engine.name=dask --set engine.scheduler={address}")
        console.file.flush()
        try:
            while True:
                time.sleep(3600)
        except KeyboardInterrupt:
            pass
