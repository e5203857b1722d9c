"""pfl-research: `python -m benchmarks.speed.contestants.pfl_peer FOLDER`, in an environment that has `pfl`.

Its own FederatedAveraging on its SimulatedBackend, in as many processes as there are cores, one thread each, joined
by torch.distributed on loopback. Users, and the order of their samples, are the task's.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import torch
from benchmarks.speed import networks
from benchmarks.speed.contestants.serving import Turns
from benchmarks.speed.task import Task
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

RANK, ADDRESSES = "PFL_WORKER_RANK", "PFL_WORKER_ADDRESSES"


def fitting(cohort: int, cores: int) -> int:
    """Return the most processes that share a cohort evenly: pfl draws users for all of them at a time."""
    return max(n for n in range(1, cores + 1) if cohort % n == 0)


def start_others(processes: int) -> None:
    """Become the first of several processes, and start the others."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    os.environ[ADDRESSES] = ",".join([f"127.0.0.1:{port}"] * processes)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    for rank in range(1, processes):
        command = [sys.executable, "-m", "benchmarks.speed.contestants.pfl_peer", *sys.argv[1:]]
        environment = {**os.environ, RANK: str(rank)}
        subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL)
    os.environ[RANK] = "0"


def network(task: Task) -> nn.Module:
    """Return the network with the two functions that pfl asks for."""
    model: Any = networks.build(task.about)
    model.load_state_dict(task.weights)
    model.loss = lambda x, y: cross_entropy(model(x), y)
    model.metrics = lambda x, y: _metrics(model, x, y)
    return model  # type: ignore[no-any-return]


@torch.no_grad()
def _metrics(model: nn.Module, x: Tensor, y: Tensor) -> dict[str, Any]:
    from pfl.metrics import Weighted

    outputs = model(x)
    return {
        "loss": Weighted(float(cross_entropy(outputs, y, reduction="sum")), len(y)),
        "accuracy": Weighted(int((outputs.argmax(1) == y).sum()), len(y)),
    }


def users(task: Task) -> Iterator[tuple[int, int]]:
    """Yield round and place of every user that trains, one after the other."""
    return ((round, slot) for round in count() for slot in range(task.about["cohort"]))


def dataset_of(task: Task) -> Callable[[tuple[int, int]], Any]:
    """Return the function that makes a user's data set, in the order of its round."""
    from pfl.data.dataset import Dataset

    def make(user: tuple[int, int]) -> Any:
        round, slot = user
        client, order = task.cohorts[round][slot], task.orders[round][slot]
        return Dataset([task.x[client][order], task.y[client][order]])

    return make


def callback(task: Task, turns: Turns | None, processes: int) -> Any:
    """Return what pfl calls after every round: evaluation where it is due, then the protocol."""
    from pfl.callback.base import TrainingProcessCallback
    from pfl.data.dataset import Dataset
    from pfl.metrics import Metrics

    rank = int(os.environ.get(RANK, "0"))

    def together() -> None:
        if processes > 1:
            torch.distributed.barrier()

    class Waiting(TrainingProcessCallback):  # type: ignore[misc]
        def on_train_begin(self, *, model: Any) -> Any:
            if turns:
                turns.begin(model.pytorch_model.state_dict)
            together()
            return Metrics()

        def after_central_iteration(
            self, aggregate_metrics: Any, model: Any, *, central_iteration: int
        ) -> tuple[bool, Any]:
            if task.evaluates(central_iteration + 1):
                x, y = task.test
                for client in range(rank, len(x), processes):
                    model.evaluate(Dataset([x[client], y[client]]))
                together()
            if turns:
                turns.done()
            together()
            return False, Metrics()

    return Waiting()


def play(task: Task, turns: Turns | None, processes: int) -> None:
    """Let pfl run its loop."""
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.aggregate.weighting import WeightByDatapoints
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.hyperparam.base import NNEvalHyperParams, NNTrainHyperParams
    from pfl.model.pytorch import PyTorchModel

    about, module = task.about, network(task)
    model = PyTorchModel(
        model=module,
        local_optimizer_create=torch.optim.SGD,
        central_optimizer=torch.optim.SGD(module.parameters(), lr=1.0),
    )
    sequence = users(task)
    data = FederatedDataset(dataset_of(task), lambda: next(sequence))
    FederatedAveraging().run(
        backend=SimulatedBackend(training_data=data, val_data=data, postprocessors=[WeightByDatapoints()]),
        model=model,
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=about["capacity"],
            evaluation_frequency=about["capacity"] + 1,
            train_cohort_size=about["cohort"],
            val_cohort_size=0,
        ),
        model_train_params=NNTrainHyperParams(
            local_num_epochs=1, local_learning_rate=about["lr"], local_batch_size=about["batch"]
        ),
        model_eval_params=NNEvalHyperParams(local_batch_size=None),
        callbacks=[callback(task, turns, processes)],
    )


def main() -> None:
    """Start all processes and play rounds as they are asked for."""
    torch.set_num_threads(1)
    turns = None if RANK in os.environ else Turns()
    task = Task(Path(sys.argv[1]))
    processes = fitting(task.about["cohort"], len(os.sched_getaffinity(0)))
    if turns and processes > 1:
        start_others(processes)
    play(task, turns, processes)


if __name__ == "__main__":
    main()
