"""PFLlib from a checkout: `python -m benchmarks.speed.contestants.pfllib_peer CHECKOUT FOLDER`.

Its server's and FedAvg client's own classes play the round that its FedAvg plays: models to all clients, local
training, models back, weighted sum. Data come from memory in the task's order, where PFLlib reads a file every time.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

from benchmarks.speed import networks
from benchmarks.speed.contestants.checkouts import pretend
from benchmarks.speed.contestants.serving import Turns
from benchmarks.speed.task import Task
from torch.utils.data import DataLoader, TensorDataset


class Options:
    """PFLlib's command line: what is not named is switched off."""

    def __init__(self, **named: Any) -> None:
        self.__dict__.update(named)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return 0


def load(checkout: Path) -> tuple[Any, Any]:
    """Return PFLlib's server and client classes."""
    if not (checkout / "system" / "flcore").is_dir():
        sys.exit(f"{checkout.name} is no checkout of PFLlib as we know it: there is no system/flcore")
    sys.path.insert(0, str(checkout / "system"))
    pretend()
    server = importlib.import_module("flcore.servers.serverbase").Server
    return server, importlib.import_module("flcore.clients.clientavg").clientAVG


def options(task: Task) -> Options:
    """Return the settings of a task as PFLlib names them."""
    about, model = task.about, networks.build(task.about)
    model.load_state_dict(task.weights)
    return Options(
        model=model,
        device="cpu",
        dataset="task",
        algorithm="FedAvg",
        num_classes=about["outputs"],
        local_epochs=1,
        batch_size=about["batch"],
        local_learning_rate=about["lr"],
        learning_rate_decay_gamma=1.0,
        num_clients=about["clients"],
        join_ratio=about["cohort"] / about["clients"],
        time_threthold=1e9,
        time_threshold=1e9,
    )


class Loop:
    """PFLlib's round, with the task's clients and orders."""

    def __init__(self, task: Task, server: Any, client: Any) -> None:
        self.task, self.round, given = task, 0, options(task)
        self.server = server(given, 0)
        samples = {"train_samples": task.about["samples"], "test_samples": task.about["test"]}
        for i in range(task.about["clients"]):
            made = client(given, id=i, train_slow=False, send_slow=False, **samples)
            made.load_test_data = lambda batch_size=None, i=i: self._loader(task.test[0][i], task.test[1][i])
            self.server.clients.append(made)

    def play(self) -> None:
        """Play one round."""
        server, chosen = self.server, []
        for client, order in zip(self.task.cohorts[self.round], self.task.orders[self.round], strict=True):
            x, y = self.task.x[client][order], self.task.y[client][order]
            one = server.clients[int(client)]
            one.load_train_data = lambda batch_size=None, x=x, y=y: self._loader(x, y)
            chosen.append(one)
        server.selected_clients, server.current_num_join_clients = chosen, len(chosen)
        server.send_models()
        for one in chosen:
            one.train()
        server.receive_models()
        server.aggregate_parameters()
        self.round += 1
        if self.task.evaluates(self.round):
            server.send_models()
            server.test_metrics()

    def _loader(self, x: Any, y: Any) -> Any:
        return DataLoader(TensorDataset(x, y), self.task.about["batch"])


def main() -> None:
    """Play rounds as they are asked for."""
    turns = Turns()
    loop = Loop(Task(Path(sys.argv[2])), *load(Path(sys.argv[1])))
    turns.begin(lambda: loop.server.global_model.state_dict())
    for _ in range(loop.task.about["capacity"]):
        loop.play()
        turns.done()


if __name__ == "__main__":
    main()
