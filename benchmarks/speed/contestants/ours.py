"""Intarsia itself: `python -m benchmarks.speed.contestants.ours [--fp32] FOLDER`.

`intarsia.run` as a user calls it, by the engine of the task's settings (usually `local`), with everything that it does
by itself: sampling, tasks and updates, checks, exact sums, records, a checkpoint every round. An observer waits between
rounds.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.speed import networks
from benchmarks.speed.contestants.serving import Turns
from benchmarks.speed.task import Task
from torch import Tensor, nn

import intarsia
from intarsia.engines.local.processes import end_with
from intarsia.runs import RunFolder


class Waiting(intarsia.Observer):
    """Lets rounds be played only when they are asked for; the last is done when its checkpoint is on disk."""

    def __init__(self, turns: Turns, out: Path) -> None:
        self.turns, self.folder = turns, RunFolder(out)

    def started(self, rounds: int, done: int, clients: int) -> None:
        """Wait for the first rounds."""
        self.turns.begin(lambda: shared(self.folder))

    def round_done(self, report: intarsia.RoundReport) -> None:
        """Wait, if this was the last one asked for."""
        if report.failures:
            raise RuntimeError(f"a client failed: {report.failures[0]}")
        self.turns.done(lambda: self._saved(report.round))

    def _saved(self, round: int) -> None:
        while round not in self.folder.checkpoints:
            time.sleep(0.0005)


def population(task: Task) -> dict[str, dict[str, Any]]:
    """Return the clients as `intarsia.run` takes them."""
    x_test, y_test = task.test
    names = task.about["names"]
    return {
        name: {"train": (task.x[i], task.y[i]), "test": (x_test[i], y_test[i])}
        for i, name in enumerate(names)
    }


def own_model(task: Task) -> nn.Module | None:
    """Return the model, where it is none that settings can name."""
    if "model" in task.about["settings"]:
        return None
    model = networks.build(task.about)
    model.load_state_dict(task.weights)
    return model


def shared(folder: RunFolder) -> Mapping[str, Tensor]:
    """Return all shared weights of the last checkpoint."""
    pool = folder.state_at().pool
    return {name: tensor for address in pool for name, tensor in pool.get(address).tensors.items()}


@contextmanager
def with_cluster(settings: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Start a cluster in processes of this one, if the settings ask for it, and name it in them."""
    engine = settings["engine"]
    if engine["name"] != "dask":
        yield dict(settings)
        return
    command = ["-m", "intarsia", "cluster", "up", "--workers", str(engine["workers"]), "--port", "0"]
    end = partial(end_with, os.getpid())
    with subprocess.Popen(
        [sys.executable, *command], stdout=subprocess.PIPE, text=True, preexec_fn=end
    ) as process:
        assert process.stdout is not None
        try:
            found = re.search(r"tcp://[\d.:]+\d", process.stdout.readline())
            assert found, "no cluster could be started"
            yield {**settings, "engine": {**engine, "scheduler": found[0]}}
        finally:
            process.send_signal(signal.SIGINT)


def main() -> None:
    """Run the federation; its observer plays the protocol."""
    turns, task = Turns(), Task(Path(sys.argv[-1]))
    with tempfile.TemporaryDirectory() as folder, with_cluster(task.about["settings"]) as settings:
        out = Path(folder) / "run"
        observer = Waiting(turns, out)
        if "--fp32" in sys.argv:
            settings = {**settings, "training": {**settings["training"], "precision": "fp32"}}
        intarsia.run(settings, data=population(task), model=own_model(task), out=out, observer=observer)


if __name__ == "__main__":
    main()
