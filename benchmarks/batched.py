"""Batched clients against the sequential solver, and a run of 1,000 clients with logistic regression.

    OMP_NUM_THREADS=1 python benchmarks/batched.py

Ratios are of CPU time, the best of interleaved repetitions in one process with one thread; the run's CPU seconds count
the workers too.
"""

from __future__ import annotations

import resource
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

import intarsia
from intarsia.core import chance, one_thread
from intarsia.data import Examples
from intarsia.models import MLP, Logistic, ModularLSTM
from intarsia.training import LOSSES, Descent, Objective, Situation, Training, train, tune_allocator
from intarsia.training.fast import Chain, StackMember, train_together

STACKS = (1, 2, 5, 10, 50)
"""Clients that LSTMs are compared with."""
CASES = [((200, 200), 784, 10), ((200, 200), 784, 50), ((64, 32), 64, 16), ((), 784, 10), ((), 60, 10)]
"""Hidden layers, inputs, batch size; 50 clients with 100 samples each and 10 classes."""


def compare(hidden: tuple[int, ...], inputs: int, batch: int, repeat: int = 5) -> float:
    """Return how many times less CPU time batched clients take."""
    model = (MLP(hidden) if hidden else Logistic()).build((inputs,), 10)
    data = [Examples(torch.randn(100, inputs), torch.randint(0, 10, (100,))) for _ in range(50)]
    return _compare(model, data, batch, repeat)


def compare_lstms(clients: int, repeat: int = 5) -> float:
    """Return the same of an LSTM on windows of motion data, 64 samples a client, batch 8."""
    model = ModularLSTM().build((128, 6), 6)
    data = [Examples(torch.randn(64, 128, 6), torch.randint(0, 6, (64,))) for _ in range(clients)]
    return _compare(model, data, 8, repeat)


def _compare(model: nn.Module, data: list[Examples], batch: int, repeat: int) -> float:
    start = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    training = Training(batch_size=batch)
    descent = Descent(Objective(), training, training.lr, 1)

    def sequential() -> None:
        for i, own in enumerate(data):
            model.load_state_dict(start)
            at = Situation(model, LOSSES["cross_entropy"], {})
            train(at, descent, own, chance.generator(0, "benchmark", i))

    def batched() -> None:
        chain = Chain.of(model)
        assert chain is not None
        members = [
            StackMember(start, frozenset(start), {}, own, chance.generator(0, "benchmark", i))
            for i, own in enumerate(data)
        ]
        for first in range(0, len(members), chain.most):
            train_together(chain, members[first : first + chain.most], descent)

    times = [(_cpu(sequential), _cpu(batched)) for _ in range(repeat)]
    return min(one for one, _ in times) / min(other for _, other in times)


def _cpu(work: Callable[[], None]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


def population(clients: int = 1000) -> dict[str, dict[str, tuple[Tensor, Tensor]]]:
    """Return clients with 20 to 79 training samples of 60 numbers, labelled by one linear rule."""
    draw = torch.Generator().manual_seed(0)
    rule = torch.randn(60, 10, generator=draw)
    made = {}
    for i in range(clients):
        n = int(torch.randint(20, 80, (1,), generator=draw))
        x = torch.randn(n + 10, 60, generator=draw)
        y = (x @ rule).argmax(1)
        made[f"client-{i:04d}"] = {"train": (x[:n], y[:n]), "test": (x[n:], y[n:])}
    return made


class Clock(intarsia.Observer):
    """Notes how much CPU time had gone when the rounds began."""

    spent = 0.0

    def started(self, rounds: int, done: int, clients: int) -> None:
        """Take the time."""
        self.spent = _spent()


def _spent() -> float:
    usage = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(own.ru_utime + own.ru_stime for own in usage)


def thousand(rounds: int = 100) -> float:
    """Return the CPU seconds of a run after its start: 10 of 1,000 clients a round, one evaluation at the end."""
    settings = {
        "rounds": rounds,
        "model": "logistic",
        "sampling": {"clients": 10},
        "evaluation": {"every": rounds, "metrics": []},
        "training": {"batch_size": 10},
        "engine": {"device": "cpu"},
    }
    clock = Clock()
    with tempfile.TemporaryDirectory() as folder:
        intarsia.run(settings, data=population(), out=Path(folder) / "run", observer=clock)
    return _spent() - clock.spent


if __name__ == "__main__":
    tune_allocator()
    with one_thread():
        for case in CASES:
            print(*case, f"{compare(*case):.2f} times less CPU time")
        for clients in STACKS:
            print(f"LSTM, {clients} clients: {compare_lstms(clients):.2f} times less CPU time")
    print(f"1,000 clients, 100 rounds: {thousand():.2f} CPU seconds")
