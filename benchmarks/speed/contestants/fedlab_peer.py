"""FedLab from a checkout: `python -m benchmarks.speed.contestants.fedlab_peer CHECKOUT FOLDER`.

Its synchronous server and serial SGD trainer in the loop of its standalone pipeline, one process.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

from benchmarks.speed import networks
from benchmarks.speed.contestants.checkouts import pretend
from benchmarks.speed.contestants.plain import correct
from benchmarks.speed.contestants.serving import Turns
from benchmarks.speed.task import Task
from torch.utils.data import DataLoader, TensorDataset


class Data:
    """The task's clients as FedLab asks for them."""

    def __init__(self, task: Task) -> None:
        self.task, self.round = task, 0

    def get_dataloader(self, client: int, batch_size: int) -> Any:
        """Return a client's samples in the order of this round."""
        slot = self.task.cohorts[self.round].tolist().index(client)
        order = self.task.orders[self.round][slot]
        return DataLoader(TensorDataset(self.task.x[client][order], self.task.y[client][order]), batch_size)


class Loop:
    """FedLab's round."""

    def __init__(self, task: Task, checkout: Path) -> None:
        self.task, self.data = task, Data(task)
        server, client = load(checkout)
        about, model = task.about, networks.build(task.about)
        model.load_state_dict(task.weights)
        ratio = min(1.0, (about["cohort"] + 0.5) / about["clients"])  # it is multiplied and cut off
        self.handler = server(model, global_round=about["capacity"], sample_ratio=ratio, cuda=False)
        self.handler.num_clients = about["clients"]
        self.handler.round_clients = about["cohort"]
        self.trainer = client(model, about["clients"], cuda=False)
        self.trainer.setup_dataset(self.data)
        self.trainer.setup_optim(1, about["batch"], about["lr"])

    def play(self) -> None:
        """Play one round."""
        self.trainer.local_process(self.handler.downlink_package, self.task.cohorts[self.data.round].tolist())
        for package in self.trainer.uplink_package:
            self.handler.load(package)
        self.data.round += 1
        if self.task.evaluates(self.data.round):
            for x, y in zip(*self.task.test, strict=True):
                correct(self.handler._model, x, y)


def load(checkout: Path) -> tuple[Any, Any]:
    """Return FedLab's server and trainer classes."""
    if not (checkout / "fedlab" / "contrib" / "algorithm").is_dir():
        sys.exit(
            f"{checkout.name} is no checkout of FedLab as we know it: there is no fedlab/contrib/algorithm"
        )
    sys.path.insert(0, str(checkout))
    pretend()
    server = importlib.import_module("fedlab.contrib.algorithm.basic_server").SyncServerHandler
    return server, importlib.import_module("fedlab.contrib.algorithm.basic_client").SGDSerialClientTrainer


def main() -> None:
    """Play rounds as they are asked for."""
    turns = Turns()
    loop = Loop(Task(Path(sys.argv[2])), Path(sys.argv[1]))
    turns.begin(lambda: loop.handler._model.state_dict())
    for _ in range(loop.task.about["capacity"]):
        loop.play()
        turns.done()


if __name__ == "__main__":
    main()
