"""The reference: the same rounds in double precision, one step after the other."""

from __future__ import annotations

from pathlib import Path

import torch
from benchmarks.speed import networks
from benchmarks.speed.task import Task
from safetensors.torch import load_file
from torch import Tensor
from torch.nn.functional import cross_entropy


def weights_after(task: Task, rounds: int) -> dict[str, Tensor]:
    """Return the shared weights after so many rounds."""
    model = networks.build(task.about).double()
    shared = {name: tensor.double() for name, tensor in task.weights.items()}
    for round in range(rounds):
        total = {name: torch.zeros_like(tensor) for name, tensor in shared.items()}
        for client, order in zip(task.cohorts[round], task.orders[round], strict=True):
            model.load_state_dict(shared)
            for picked in order.split(task.about["batch"]):
                loss = cross_entropy(model(task.x[client][picked].double()), task.y[client][picked])
                gradients = torch.autograd.grad(loss, list(model.parameters()))
                with torch.no_grad():
                    for parameter, gradient in zip(model.parameters(), gradients, strict=True):
                        parameter -= task.about["lr"] * gradient
            for name, tensor in model.state_dict().items():
                total[name] += tensor / len(task.cohorts[round])
        shared = total
    return shared


def difference(path: Path, reference: dict[str, Tensor]) -> float:
    """Return the largest difference of any weight in a file from the reference."""
    found = load_file(path)
    if found.keys() != reference.keys():
        raise ValueError(f"the weights have other names: {sorted(found.keys() ^ reference.keys())}")
    return max(float((found[name].double() - tensor).abs().max()) for name, tensor in reference.items())
