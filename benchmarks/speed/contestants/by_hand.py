"""The best loop we know by hand: `python -m benchmarks.speed.contestants.by_hand FOLDER`.

Forked processes of one thread (one a core), each with one model that is filled in place; channels_last, pooling
before the ReLU, batches by index_select from rows in (height, width, channels), foreach updates, freed memory kept
(mallopt), every process adds up the clients it trained as they come. Nothing is checked, recorded or serialised:
weights and sums lie in shared memory, and only the number of the round travels.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import sys
from multiprocessing.connection import Connection
from multiprocessing.sharedctypes import Synchronized
from pathlib import Path

import torch
from benchmarks.speed import networks
from benchmarks.speed.contestants.serving import Turns
from benchmarks.speed.task import Task
from torch import Tensor
from torch.nn.functional import cross_entropy

LARGE = 250
"""Samples a batch of an evaluation."""


class Worker:
    """One process's model and data."""

    def __init__(self, task: Task, start: list[Tensor], rows: Tensor) -> None:
        self.task, self.about, self.start, self.rows = task, task.about, start, rows
        self.model = networks.build(self.about, pool_first=True)
        self.images = task.x.dim() == 5
        if self.images:
            self.model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.params: list[Tensor] = list(self.model.parameters())

    def work(self, round: int, next_slot: Synchronized[int], sums: list[Tensor]) -> None:
        """Train clients of a round until there are none left; add up what comes out."""
        torch._foreach_zero_(sums)
        cohort, orders = self.task.cohorts[round], self.task.orders[round]
        while (slot := take(next_slot)) < len(cohort):
            self.train(int(cohort[slot]), orders[slot])
            with torch.no_grad():
                torch._foreach_add_(sums, self.params, alpha=1 / len(cohort))

    def train(self, client: int, order: Tensor) -> None:
        """Train the model on one client's samples, from the shared weights."""
        with torch.no_grad():
            torch._foreach_copy_(self.params, self.start)
        rows, labels, lr = self.rows[client], self.task.y[client], self.about["lr"]
        for picked in torch.split(order, self.about["batch"]):
            loss = cross_entropy(
                self.model(self.inputs(rows.index_select(0, picked))), labels.index_select(0, picked)
            )
            loss.backward()  # type: ignore[no-untyped-call]
            with torch.no_grad():
                torch._foreach_add_(
                    self.params, [p.grad for p in self.params if p.grad is not None], alpha=-lr
                )
            for param in self.params:
                param.grad = None

    def inputs(self, rows: Tensor) -> Tensor:
        """Return rows as the model takes them."""
        return rows.permute(0, 3, 1, 2) if self.images else rows

    @torch.inference_mode()
    def evaluate(self) -> int:
        """Return the hits on all test data with the shared weights, in large batches."""
        torch._foreach_copy_(self.params, self.start)
        x, y = (part.flatten(0, 1) for part in self.task.test)
        hits = (
            self.model(a).argmax(1).eq(b).sum()
            for a, b in zip(torch.split(x, LARGE), torch.split(y, LARGE), strict=True)
        )
        return int(sum(hits))


def take(counter: Synchronized[int]) -> int:
    """Return the number of a counter, and raise it."""
    with counter.get_lock():
        counter.value += 1
        return counter.value - 1


def shared(tensor: Tensor) -> Tensor:
    """Move a tensor to memory that forked processes share."""
    return tensor.share_memory_()  # type: ignore[no-any-return, no-untyped-call]


def keep_freed_memory() -> None:
    """Tell glibc not to return memory after every step."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        libc.mallopt(-3, 1 << 30)
        libc.mallopt(-1, (1 << 31) - 1)


def serve(worker: Worker, sums: list[Tensor], slots: Synchronized[int], pipe: Connection) -> None:
    """Be a worker: train when a round's number comes."""
    torch.set_num_threads(1)
    keep_freed_memory()
    pipe.send(None)
    while (round := pipe.recv()) is not None:
        worker.work(round, slots, sums)
        pipe.send(None)


class Loop:
    """The parent: hands out rounds, adds the sums of its workers."""

    def __init__(self, task: Task, processes: int) -> None:
        torch.set_num_threads(1)
        keep_freed_memory()
        self.task, self.round = task, 0
        model = networks.build(task.about)
        model.load_state_dict(task.weights)
        self.names = [name for name, _ in model.named_parameters()]
        self.start = [shared(self.laid_out(p)) for p in model.parameters()]
        self.sums = [[shared(torch.empty_like(p)) for p in self.start] for _ in range(processes)]
        rows = task.x.permute(0, 1, 3, 4, 2).contiguous() if task.x.dim() == 5 else task.x
        self.worker = Worker(task, self.start, rows)
        fork = multiprocessing.get_context("fork")
        self.slots: Synchronized[int] = fork.Value("i", 0)
        self.pipes = []
        for sums in self.sums:
            ours, theirs = fork.Pipe()
            fork.Process(target=serve, args=(self.worker, sums, self.slots, theirs), daemon=True).start()
            self.pipes.append(ours)
        for pipe in self.pipes:
            pipe.recv()

    def laid_out(self, weight: Tensor) -> Tensor:
        """Return a weight in the layout that the workers' models have."""
        copied = weight.detach().clone()
        return copied.to(memory_format=torch.channels_last) if copied.dim() == 4 else copied

    def play(self) -> None:
        """Play one round."""
        self.slots.value = 0
        for pipe in self.pipes:
            pipe.send(self.round)
        for pipe in self.pipes:
            pipe.recv()
        torch._foreach_copy_(self.start, self.sums[0])
        for sums in self.sums[1:]:
            torch._foreach_add_(self.start, sums)
        self.round += 1
        if self.task.evaluates(self.round):
            self.worker.evaluate()

    def weights(self) -> dict[str, Tensor]:
        """Return the shared weights by name."""
        return dict(zip(self.names, self.start, strict=True))


def main() -> None:
    """Play rounds as they are asked for."""
    turns = Turns()
    loop = Loop(Task(Path(sys.argv[1])), processes=len(os.sched_getaffinity(0)))
    turns.begin(loop.weights)
    for _ in range(loop.task.about["capacity"]):
        loop.play()
        turns.done()


if __name__ == "__main__":
    main()
