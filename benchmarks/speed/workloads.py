"""The workloads: what is trained, on how many clients; and the files that all contestants are given.

Data are random numbers of a data set's shape: what is measured does not depend on their meaning. Who takes part
in a round, and in which order each client sees its samples, comes from the product's own functions, so that every
contestant trains on the same batches and must end with the same weights.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from benchmarks.speed import networks
from safetensors.torch import save_file
from torch import nn

from intarsia.data import ClientInfo, Examples
from intarsia.federation import Sampling
from intarsia.training import LocalClient, Training, loss_for

SEED = 0
LOOPS = ("again", "plain", "plain-1", "by-hand", "fp32")
PEERS = ("pfl", "flower", "pfllib", "fedlab")


@dataclass(frozen=True)
class Workload:
    """One training job that contestants are compared on."""

    name: str
    title: str
    network: str
    """The network as loops and peers build it; empty: only the product plays."""
    shape: tuple[int, ...]
    clients: int
    samples: int
    batch: int
    cohort: int
    rounds: int
    """Rounds in one measurement: about a second or two of ours."""
    outputs: int = 10
    hidden: tuple[int, ...] = ()
    model: Mapping[str, Any] = field(default_factory=dict)
    """The model as the product's settings name it; empty: it is given in Python."""
    lr: float = 0.02
    test: int = 4
    check: int = 2
    """Rounds after which the weights are compared with the reference."""
    apart: float = 0.02
    """Which share of the way from the first weights ours may be off the reference: more than rounding changes."""
    evaluate_every: int = 0
    job: bool = False
    """Whether each measurement is a process from its start to its end."""
    against: tuple[str, ...] = (*LOOPS[:4], *PEERS)
    settings: Mapping[str, Any] = field(default_factory=dict)
    """More settings for the product."""

    @property
    def names(self) -> list[str]:
        """The clients' names."""
        return [f"client-{i:05d}" for i in range(self.clients)]

    @property
    def samples_a_round(self) -> int:
        """Samples that are trained on in a round."""
        return self.cohort * self.samples

    def product_settings(self, rounds: int, weights: Path) -> dict[str, Any]:
        """Return what `intarsia.run` is given: a job's rounds, or always one round more than is ever played.

        A run evaluates after its last round, so this decides whether it does so where nobody else does.
        """
        total = rounds if self.job else rounds + 1
        named: dict[str, Any] = {"model": dict(self.model)} if self.model else {}
        named |= {"weights": str(weights)} if self.model and self.network else {}
        return {
            "name": self.name,
            "seed": SEED,
            "rounds": total,
            "method": "fedavg",
            **named,
            "training": {"lr": self.lr, "batch_size": self.batch},
            "sampling": {"clients": self.cohort},
            "evaluation": {"every": self.evaluate_every or total, "metrics": []},
            "engine": {"name": "local", "device": "cpu"},
            **self.settings,
        }

    def write(self, folder: Path, rounds: int) -> None:
        """Write all that contestants are given, for so many rounds."""
        folder.mkdir(parents=True, exist_ok=True)
        source = np.random.default_rng(SEED)
        for part, samples in (("", self.samples), ("_test", self.test)):
            x = source.standard_normal((self.clients, samples, *self.shape), dtype=np.float32)
            np.save(folder / f"x{part}.npy", x)
            np.save(folder / f"y{part}.npy", source.integers(self.outputs, size=(self.clients, samples)))
        cohorts = [self._cohort(round) for round in range(1, rounds + 1)]
        orders = [[self._order(round, c) for c in cohort] for round, cohort in enumerate(cohorts, 1)]
        np.save(folder / "cohorts.npy", np.array(cohorts))
        np.save(folder / "orders.npy", np.array(orders))
        about = {**asdict(self), "names": self.names, "capacity": rounds}
        weights = folder / "weights.safetensors"
        if self.network:
            save_file(self._initial(about), weights)
        about["settings"] = self.product_settings(rounds, weights)
        (folder / "task.json").write_text(json.dumps(about))

    def _initial(self, about: Mapping[str, Any]) -> dict[str, torch.Tensor]:
        with torch.random.fork_rng():
            torch.manual_seed(SEED)
            return dict(networks.build(about).state_dict())

    def _cohort(self, round: int) -> list[int]:
        chosen = Sampling(clients=self.cohort).choose(self.names, SEED, round)
        return [int(name.removeprefix("client-")) for name in chosen]

    def _order(self, round: int, client: int) -> list[int]:
        """Return the order of a client's samples as the product's own solver draws it."""
        info = ClientInfo(f"client-{client:05d}", (1,), {"train": self.samples})
        rows = Examples(torch.zeros(self.samples, 1), torch.zeros(self.samples, dtype=torch.long))
        training, loss = Training(batch_size=self.batch), loss_for("auto", "classification")
        local = LocalClient(info, {"train": rows}, nn.Identity(), {}, training, loss, SEED, round, round)
        return torch.cat([batch.rows for batch in local.batches()]).tolist()


CIFAR, MNIST = (3, 32, 32), (1, 28, 28)

CIFAR_20 = Workload(
    "cifar-b20", "CNN (McMahan et al. 2017), CIFAR shape, 100 clients x 100, batch 20, 10 a round",
    "cnn", CIFAR, 100, 100, 20, 10, rounds=3, check=1, model={"name": "cnn"},
)  # fmt: skip
CIFAR_50 = Workload(
    "cifar-b50", "the same, 100 clients x 500, batch 50",
    "cnn", CIFAR, 100, 500, 50, 10, rounds=1, check=1, model={"name": "cnn"},
)  # fmt: skip
MNIST_16 = Workload(
    "mnist-b16", "the same network, MNIST shape, 100 clients x 160, batch 16, 10 a round",
    "cnn", MNIST, 100, 160, 16, 10, rounds=2, check=1, model={"name": "cnn"},
)  # fmt: skip
MLP_10 = Workload(
    "mlp-b10", "MLP 784-200-200-10, 100 clients x 100, batch 10, 10 a round",
    "mlp", MNIST, 100, 100, 10, 10, rounds=10, hidden=(200, 200), model={"name": "mlp", "hidden": [200, 200]},
)  # fmt: skip
LSTM_8 = Workload(
    "lstm-b8", "LSTM 16 on motion windows (128 steps, 6 channels), 100 clients x 64, batch 8, 10 a round; ours with "
    '`training.batched = "lstm"`',
    "lstm", (128, 6), 100, 64, 8, 10, rounds=6, outputs=6, model={"name": "modular_lstm"},
    settings={"training": {"lr": 0.02, "batch_size": 8, "batched": "lstm"}},
)  # fmt: skip
LOGISTIC = Workload(
    "logistic", "logistic regression 784-10, 1,000 clients x 60, batch 10, 10 a round, 100 rounds, all clients "
    "evaluated at the end",
    "logistic", MNIST, 1000, 60, 10, 10, rounds=100, test=10, evaluate_every=100, model={"name": "logistic"},
)  # fmt: skip
PFL_CIFAR = Workload(
    "pfl-cifar10", "pfl-research's CIFAR-10 setting: CNN of 1.63 M parameters, 1,000 users x 50, batch 10, 50 a round",
    "small_kernels", CIFAR, 1000, 50, 10, 50, rounds=1, check=1,
)  # fmt: skip
CIFAR_20_BF16 = replace(
    CIFAR_20, name="cifar-b20-bf16", against=("again", "fp32", "pfl"), apart=0.2,
    title='CNN as in `cifar-b20`; ours with `training.precision = "bf16"`, all others in single precision',
    settings={"training": {"lr": 0.02, "batch_size": 20, "precision": "bf16"}},
)  # fmt: skip
CIFAR_50_BF16 = replace(
    CIFAR_50, name="cifar-b50-bf16", against=("again", "fp32", "pfl"), apart=0.2,
    title='CNN as in `cifar-b50`; ours with `training.precision = "bf16"`, all others in single precision',
    settings={"training": {"lr": 0.02, "batch_size": 50, "precision": "bf16"}},
)  # fmt: skip
JOB = replace(
    CIFAR_20, name="job", rounds=10, evaluate_every=10, job=True, against=("again", "flower"),
    title="a job of 10 rounds from start to end (CNN, CIFAR shape, 100 clients x 100, batch 20, 10 a round), all "
    "clients evaluated at the end",
)  # fmt: skip
JOB_MLP = replace(
    MLP_10, name="job-mlp", rounds=10, check=1, evaluate_every=10, job=True, against=("again", "flower"),
    title="the same with the MLP of `mlp-b10`: hardly more than start-up",
)  # fmt: skip

CNNS = (CIFAR_20, MNIST_16, CIFAR_50, CIFAR_20_BF16, CIFAR_50_BF16)
FEDERATED = {w.name: w for w in (*CNNS, MLP_10, LSTM_8, LOGISTIC, PFL_CIFAR, JOB, JOB_MLP)}
"""Workloads that are compared with loops and peers, in the order in which they run."""
