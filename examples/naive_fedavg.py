"""FedAvg in plain lines, with Intarsia's blocks and without its engine: what a run does, seen from above.

The same clients, batches and first weights give the same model here and by `intarsia.run`, up to rounding.
Run it with: python examples/naive_fedavg.py
"""

from __future__ import annotations

import copy
import tempfile

import torch
from torch import Tensor, nn
from torch.nn import functional

import intarsia

SEED, ROUNDS, RATE, BATCH = 0, 5, 0.1, 16
Data = dict[str, dict[str, tuple[Tensor, Tensor]]]


def clients() -> Data:
    """Return four clients, each larger than the one before: which of three directions do points lie in?"""
    draw, data = torch.Generator().manual_seed(1), {}
    for number in range(4):
        x = torch.randn(40 + 20 * number, 2, generator=draw)
        y = (x @ torch.tensor([[0.0, 1.0, -1.0], [1.0, -0.5, -0.5]])).argmax(1)
        data[f"client-{number}"] = {"train": (x[:-20], y[:-20]), "test": (x[-20:], y[-20:])}
    return data


def federated_averaging(model: nn.Module, data: Data) -> intarsia.Block:
    """Play all rounds: send the block, train it everywhere, take the mean weighted by samples."""
    cut = intarsia.Cut.whole()
    shared = cut.split(model)["model"]
    samples = {name: len(own["train"][1]) for name, own in data.items()}
    for round in range(1, ROUNDS + 1):
        mean = {name: torch.zeros_like(tensor) for name, tensor in shared.tensors.items()}
        for client, own in data.items():
            cut.join(model, {"model": shared})
            train(model, *own["train"], intarsia.chance.generator(SEED, "batches", round, client))
            for name, tensor in cut.split(model)["model"].tensors.items():
                mean[name] += tensor * (samples[client] / sum(samples.values()))
        shared = intarsia.Block(mean)
    return shared


def train(model: nn.Module, x: Tensor, y: Tensor, chance: torch.Generator) -> None:
    """Train one epoch in batches of chance."""
    optimiser = torch.optim.SGD(model.parameters(), RATE)
    for rows in torch.randperm(len(y), generator=chance).split(BATCH):
        optimiser.zero_grad()
        functional.cross_entropy(model(x[rows]), y[rows]).backward()
        optimiser.step()


def main() -> None:
    """Compare both ways."""
    torch.manual_seed(SEED)
    model, data = nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 3)), clients()
    settings = {
        "seed": SEED,
        "rounds": ROUNDS,
        "method": "fedavg",
        "training": {"lr": RATE, "batch_size": BATCH, "epochs": 1},
    }
    with tempfile.TemporaryDirectory() as folder:
        run = intarsia.run(settings, data=data, model=copy.deepcopy(model), out=f"{folder}/run")
        theirs = run.client("client-0").model().state_dict()
        print("accuracy:", run.summary["accuracy"])
    ours = federated_averaging(model, data)
    apart = max(float((theirs[name] - tensor).abs().max()) for name, tensor in ours.tensors.items())
    assert apart < 1e-5, apart
    print(f"largest difference of a weight: {apart:.1e}")


if __name__ == "__main__":
    main()
