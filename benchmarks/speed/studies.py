"""What has no peer: the product's own parts against the obvious way to do the same, and how cost grows."""

from __future__ import annotations

import dataclasses
import os
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from benchmarks.adapters import step_seconds
from benchmarks.cka import features_of, pair_by_pair
from benchmarks.speed.entries import entry
from benchmarks.speed.federated import OURS, Plan, say, started
from benchmarks.speed.measuring import Measurement, Watch, busy_cpu, tree_memory
from benchmarks.speed.protocol import compare, play
from benchmarks.speed.results import Row
from benchmarks.speed.workloads import CIFAR, CIFAR_20, MLP_10, Workload
from torch import nn

import intarsia
from intarsia.data import Examples, Population, from_dict
from intarsia.methods.pfedclub.cka import linear_cka
from intarsia.models import ResNet, add_adapters
from intarsia.training import channels_last_layout

GIB = 1 << 30


@dataclass(frozen=True)
class Study:
    """A measurement of its own kind."""

    name: str
    title: str
    run: Callable[[Plan], list[Row]]


def inside(work: Callable[[], object]) -> Measurement:
    """Return what some work in this process costs."""
    busy, cpu, start = busy_cpu(), time.process_time(), time.perf_counter()
    work()
    wall, used = time.perf_counter() - start, time.process_time() - cpu
    return Measurement(wall, used, max(0.0, busy_cpu() - busy - used) / wall)


def in_turn(ways: Mapping[str, Callable[[], object]], plan: Plan) -> list[Mapping[str, Measurement]]:
    """Measure several ways of doing the same, in this process, one thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for work in ways.values():
            work()
        return play(list(ways), lambda name: inside(ways[name]), plan.pairs, plan.repeats, say)
    finally:
        torch.set_num_threads(threads)


def duel(cases: Mapping[str, Workload], plan: Plan) -> list[Mapping[str, Measurement]]:
    """Let the product play several workloads in turn, each in a process of its own."""
    rounds = {name: w.rounds for name, w in cases.items()}
    with tempfile.TemporaryDirectory(prefix="bench-") as temporary, ExitStack() as stack:
        playing = {}
        for name, workload in cases.items():
            folder = Path(temporary) / name.replace(" ", "-")
            workload.write(folder, workload.rounds * (plan.pairs + plan.repeats + 1))
            playing[name] = stack.enter_context(started(entry(OURS, {}), folder))
            playing[name].ready()
            playing[name].ask(rounds=workload.rounds)
        return play(list(cases), lambda n: playing[n].measure(rounds[n]), plan.pairs, plan.repeats, say)


def adapters(plan: Plan) -> list[Row]:
    """A step with a frozen base against a step of full training."""
    size, batch = (16, 4) if plan.quick else (32, 32)
    torch.manual_seed(0)
    full = ResNet().build((3, size, size), 10)
    models: dict[str, nn.Module] = {"full training": full, "adapters": add_adapters(full)}
    x = torch.randn(batch, 3, size, size).to(memory_format=torch.channels_last)
    y = torch.randint(10, (batch,))

    def steps(model: nn.Module) -> Callable[[], object]:
        channels_last_layout(model)
        return lambda: step_seconds(model, x, y, 2)

    blocks = in_turn({name: steps(model) for name, model in models.items()}, plan)
    row = compare(blocks, "adapters", "full training", plan.pairs)
    return [{"workload": "adapters", "against": "full training", **row}]


RESNET = Workload(
    "resnet26-bf16", "", "", CIFAR, 4, 64, 32, 2, rounds=1, model={"name": "resnet"},
    settings={"training": {"lr": 0.02, "batch_size": 32, "precision": "bf16"}},
)  # fmt: skip


def resnet(plan: Plan) -> list[Row]:
    """A round of ResNet26 in bf16 against one in single precision."""
    ours = replace(RESNET, model={"name": "resnet", "channels": [64], "blocks": 1}) if plan.quick else RESNET
    single = {"training": {**ours.settings["training"], "precision": "fp32"}}
    blocks = duel({"bf16": ours, "fp32": replace(ours, settings=single)}, plan)
    row = compare(blocks, "bf16", "fp32", plan.pairs)
    samples = ours.rounds * ours.samples_a_round
    return [{"workload": ours.name, "against": "fp32", **row, "samples": samples}]


POOL = {"name": "module_pool", "layers": [2, 3, 2], "features": 128, "hidden": 64, "dropout": 0.0}
FEDMN = Workload(
    "fedmn", "", "", (784,), 100, 100, 10, 10, rounds=4, model=POOL, settings={"method": {"name": "fedmn"}}
)  # fmt: skip


def fedmn(plan: Plan) -> list[Row]:
    """A round of FedMN against a round of FedAvg on the same pool."""
    ours = replace(FEDMN, rounds=1, clients=10, cohort=2) if plan.quick else FEDMN
    cases = {"fedmn": ours, "FedAvg, whole pool": replace(ours, settings={})}
    blocks = duel(cases, plan)
    samples = ours.rounds * ours.samples_a_round
    row = compare(blocks, "fedmn", "FedAvg, whole pool", plan.pairs)
    return [{"workload": "fedmn", "against": "FedAvg, whole pool", **row, "samples": samples}]


def cka(plan: Plan) -> list[Row]:
    """All pairs of blocks compared at once against pair by pair."""
    features = features_of("III", 16 if plan.quick else 512)
    ways = {"at once": lambda: linear_cka(features), "pair by pair": lambda: pair_by_pair(features)}
    blocks = in_turn(ways, plan)
    row = compare(blocks, "at once", "pair by pair", plan.pairs)
    return [{"workload": "cka", "against": "pair by pair", **row}]


def club_population(clients: int, samples: int, public: int) -> Population:
    """Return clients with pFedClub's four networks in turn, and public data."""
    source = torch.Generator().manual_seed(0)

    def split(n: int) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.randn(n, *CIFAR, generator=source), torch.arange(n) % 10

    made = {
        f"client-{i}": {"train": split(samples), "test": split(10), "model": f"cnn{i % 4 + 1}"}
        for i in range(clients)
    }
    return dataclasses.replace(from_dict(made), public=Examples(*split(public)))


def club(plan: Plan) -> list[Row]:
    """PFedClub's server step (CKA, search, tuning, selection) against its clients' local training."""
    people = club_population(4, 10, 20) if plan.quick else club_population(10, 200, 256)
    settings: dict[str, Any] = {
        "name": "club",
        "rounds": plan.pairs,
        "method": {"name": "pfedclub", "search": {"most": 4}},
        "models": {
            f"cnn{n}": {"name": "club_cnn", "number": n, "width": 0.25 if n == 4 else 1} for n in (1, 2, 3, 4)
        },
        "training": {"lr": 0.01, "batch_size": 32, "epochs": 3},
        "sampling": {"clients": 4 if plan.quick else 5},
        "evaluation": {"every": plan.pairs, "metrics": []},
        "engine": {"name": "local", "device": "cpu"},
    }
    with tempfile.TemporaryDirectory() as folder:
        watch = Watch(os.getpid())
        seconds = intarsia.run(settings, data=people, out=f"{folder}/run").seconds
        foreign = watch.stop().foreign
    blocks = [
        {
            "server": Measurement(row["server"], row["server"], foreign),
            "training": Measurement(row["train"], row["clients"], foreign),
        }
        for row in seconds
    ]
    row = compare(blocks, "server", "training", plan.pairs)
    return [{"workload": "club", "against": "its clients' training", **row}]


GROWING = Workload(
    "growth", "", "", (32,), 100, 20, 10, 10, rounds=20, model={"name": "mlp", "hidden": [64, 32]}
)  # fmt: skip


def growth(plan: Plan) -> list[Row]:
    """What a round costs at a fixed cohort when the population grows from 100 clients."""
    sizes = (100, 200) if plan.quick else (100, 1000, 10_000)
    cases = {f"{n:,} clients": replace(GROWING, clients=n) for n in sizes}
    blocks = duel(cases, plan)
    first, *larger = cases
    return [
        {"workload": f"growth {name}", "against": first, **compare(blocks, name, first, plan.pairs)}
        for name in larger
    ]


CLUSTERED = (CIFAR_20, MLP_10)
SIDES = {
    "engine dask": {"name": "dask", "workers": 2, "device": "cpu"},
    "engine local": {"name": "local", "workers": 2, "device": "cpu"},
}


def cluster(plan: Plan) -> list[Row]:
    """Two workers of a cluster on this machine against two worker processes."""
    rows = []
    for usual in CLUSTERED:
        small = replace(usual, rounds=1, clients=10, cohort=2) if plan.quick else usual
        cases = {side: replace(small, settings={"engine": engine}) for side, engine in SIDES.items()}
        row = compare(duel(cases, plan), "engine dask", "engine local", plan.pairs)
        samples = small.rounds * small.samples_a_round
        rows.append(
            {"workload": f"cluster {usual.name}", "against": "engine local", **row, "samples": samples}
        )
    return rows


MEMORY = replace(
    GROWING, name="memory", shape=(784,), clients=10_000, samples=10, cohort=100, rounds=10, test=2,
    model={"name": "mlp", "hidden": [200, 200]}, settings={"method": {"name": "fedper"}},
)  # fmt: skip


def memory(plan: Plan) -> list[Row]:
    """The peak of the whole process tree with 10,000 clients, 100 a round, heads of their own, data included."""
    workload = replace(MEMORY, clients=100, cohort=5, rounds=2) if plan.quick else MEMORY
    with tempfile.TemporaryDirectory(prefix="bench-") as temporary:
        folder = Path(temporary)
        workload.write(folder, workload.rounds)
        with started(entry(OURS, {}), folder) as contestant, Peak(contestant.process.pid) as peak:
            contestant.ready()
            contestant.ask(rounds=workload.rounds)
    ratio = 2 * GIB / peak.bytes
    shown = [f"{peak.bytes / GIB:.2f} GiB", "2 GiB"]
    row = {"ratio": ratio, "low": ratio, "high": ratio, "cpu_ratio": None, "pairs": 1, "shown": shown}
    return [{"workload": "memory", "against": "a limit of 2 GiB", **row}]


class Peak:
    """Watches the memory of a process tree."""

    def __init__(self, root: int) -> None:
        self.root, self.bytes = root, 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Peak:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._ended.wait(0.2):
            self.bytes = max(self.bytes, tree_memory(self.root))


TITLES = {
    "adapters": "ResNet26 at 32 px, batch 32: a step with a frozen base and adapters, and one of full training",
    "resnet26-bf16": "a round of ResNet26 at 32 px (2 clients x 64, batch 32), in bf16 and in single precision",
    "fedmn": "a round of FedMN with MLP blocks (100 clients x 100, batch 10, 10 a round), and of FedAvg on that pool",
    "cka": "linear CKA of all blocks of pFedClub's zoo III, 512 samples: all at once, and pair by pair",
    "club": "pFedClub, ten clients of zoo III x 200 (CNN4 at a quarter of its width), 3 local epochs, 5 a round, 4 "
    "candidates each, 256 public samples: the server's step and its clients' training (wall; as CPU: the sum of "
    "the clients' seconds)",
    "growth": "what a round costs, at 10 clients a round, as the population grows from 100 (1: the same)",
    "cluster": "two workers of a cluster on this machine (engine `dask`, `intarsia cluster up`), and two worker "
    "processes (engine `local`)",
    "memory": "peak memory of all processes: 10,000 clients, 100 a round, MLP with heads at home, 314 MB of data",
}
RUNS = {
    "adapters": adapters,
    "resnet26-bf16": resnet,
    "fedmn": fedmn,
    "cka": cka,
    "club": club,
    "growth": growth,
    "cluster": cluster,
    "memory": memory,
}
STUDIES = {name: Study(name, title, RUNS[name]) for name, title in TITLES.items()}
