"""A plain PyTorch loop, as one writes it: `python -m benchmarks.speed.contestants.plain [--one-thread] FOLDER`.

One process. An nn.Module in the usual layout, a DataLoader over a TensorDataset of each client's samples (in the
given order), torch.optim.SGD, the trained state dict kept by deepcopy, and at the end of the round a weighted
average by stacking. Threads as torch sets them, or one.
"""

from __future__ import annotations

import copy
import sys
from pathlib import Path

import torch
from benchmarks.speed import networks
from benchmarks.speed.contestants.serving import Turns
from benchmarks.speed.task import Task
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

State = dict[str, Tensor]


def train(model: nn.Module, x: Tensor, y: Tensor, batch: int, lr: float) -> None:
    """Train on samples in this order, one epoch."""
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    model.train()
    for inputs, labels in DataLoader(TensorDataset(x, y), batch_size=batch):
        optimizer.zero_grad()
        loss = cross_entropy(model(inputs), labels)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()


def average(states: list[State], sizes: list[int]) -> State:
    """Return the mean of states, weighted by numbers of samples."""
    shares = torch.tensor(sizes, dtype=torch.float32) / sum(sizes)
    return {
        name: (torch.stack([s[name] for s in states]) * shares.view(-1, *[1] * states[0][name].dim())).sum(0)
        for name in states[0]
    }


def correct(model: nn.Module, x: Tensor, y: Tensor) -> int:
    """Return how many samples of a client the model gets right."""
    model.eval()
    with torch.no_grad():
        return sum(
            int((model(inputs).argmax(1) == labels).sum())
            for inputs, labels in DataLoader(TensorDataset(x, y), batch_size=64)
        )


class Loop:
    """The whole federation."""

    def __init__(self, task: Task) -> None:
        self.task, self.about = task, task.about
        self.model = networks.build(self.about)
        self.model.load_state_dict(task.weights)
        self.round = 0

    def play(self) -> None:
        """Play one round."""
        start = copy.deepcopy(self.model.state_dict())
        states, sizes = [], []
        for client, order in zip(self.task.cohorts[self.round], self.task.orders[self.round], strict=True):
            self.model.load_state_dict(start)
            x, y = self.task.x[client][order], self.task.y[client][order]
            train(self.model, x, y, self.about["batch"], self.about["lr"])
            states.append(copy.deepcopy(self.model.state_dict()))
            sizes.append(len(order))
        self.model.load_state_dict(average(states, sizes))
        self.round += 1
        if self.task.evaluates(self.round):
            self.evaluate()

    def evaluate(self) -> list[int]:
        """Return the hits on every client's test data."""
        return [correct(self.model, x, y) for x, y in zip(*self.task.test, strict=True)]


def main() -> None:
    """Play rounds as they are asked for."""
    turns = Turns()
    if "--one-thread" in sys.argv:
        torch.set_num_threads(1)
    loop = Loop(Task(Path(sys.argv[-1])))
    turns.begin(loop.model.state_dict)
    for _ in range(loop.task.about["capacity"]):
        loop.play()
        turns.done()


if __name__ == "__main__":
    main()
