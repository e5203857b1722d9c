"""The reference: the same rounds in double precision, one step after the other."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from benchmarks.speed import networks
from benchmarks.speed.task import Task
from safetensors.torch import load_file
from torch import Tensor
from torch.nn.functional import cross_entropy

Weights = Mapping[str, Tensor]


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
                        parameter.sub_(gradient, alpha=task.about["lr"])
            for name, tensor in model.state_dict().items():
                total[name] += tensor / len(task.cohorts[round])
        shared = total
    return shared


@dataclass(frozen=True)
class Difference:
    """How far weights lie from the reference's."""

    largest: float
    """Of any single weight."""
    share: float
    """Of all weights together, as a share of the way that training took them."""

    def tolerable(self, share: float = 0.02) -> bool:
        """Return whether this is rounding: nothing else stays below 1e-5, or below this share of the way.

        A hidden unit that is all but zero for a sample can fall on either side of the ReLU's kink; its weights then
        differ by more than rounding, and no others do. Other batches or another order change a third of the way.
        """
        return self.largest <= 1e-5 or self.share <= share


def difference(found: Path, reference: Weights, start: Weights) -> Difference:
    """Return how far the weights in a file lie from the reference, which began at these weights."""
    weights = load_file(found)
    if weights.keys() != reference.keys():
        raise ValueError(f"the weights have other names: {sorted(weights.keys() ^ reference.keys())}")
    gaps = {name: (weights[name].double() - tensor).abs() for name, tensor in reference.items()}
    way = {name: tensor - start[name].double() for name, tensor in reference.items()}
    return Difference(max(float(gap.max()) for gap in gaps.values()), _length(gaps) / _length(way))


def _length(tensors: Weights) -> float:
    return math.sqrt(sum(float(tensor.square().sum()) for tensor in tensors.values()))
