"""Softmax regression in numpy, float64, slow and plain: what methods are compared with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import intarsia
from intarsia.blocks import Address
from intarsia.core import chance
from intarsia.data import ClientInfo, Examples, Population
from intarsia.methods import Asked, Method
from intarsia.training import LOSSES, Training

Net = dict[str, np.ndarray]
LR, SIZE, EPOCHS = 0.2, 4, 2


def linear() -> nn.Module:
    """Three inputs, three classes."""
    torch.manual_seed(3)
    return nn.Linear(3, 3)


def asked(model: nn.Module, public: int | None = None) -> Asked:
    """A client of three inputs and four samples that was asked something."""
    info = ClientInfo("c", (3,), {"train": 4, "test": 2})
    return Asked(info, model, Training(batch_size=4), LOSSES["cross_entropy"], public)


def start() -> Net:
    return as_net(linear().state_dict())


def as_net(tensors: Mapping[str, torch.Tensor]) -> Net:
    return {name: tensor.double().numpy().copy() for name, tensor in tensors.items()}


def population(sizes: tuple[int, ...] = (5, 9, 14)) -> dict[str, dict[str, Any]]:
    """Clients c0, c1, ... with labels that follow the largest input, shifted by the client's number."""
    made = {}
    for i, n in enumerate(sizes):
        x = torch.randn(n + 6, 3, generator=torch.Generator().manual_seed(i))
        y = (x.argmax(1) + i) % 3
        made[f"c{i}"] = {"train": (x[:n], y[:n]), "test": (x[n:], y[n:])}
    return made


def with_public(data: Mapping[str, Any], n: int = 11) -> Population:
    """The same clients, and public data whose labels follow the largest input."""
    x = torch.randn(n, 3, generator=torch.Generator().manual_seed(99))
    return replace(intarsia.from_dict(data), public=Examples(x, x.argmax(1)))


def samples(data: Mapping[str, Any]) -> dict[str, int]:
    return {name: len(entry["train"][1]) for name, entry in data.items()}


def arrays(entry: Mapping[str, Any], split: str = "train") -> tuple[np.ndarray, np.ndarray]:
    x, y = entry[split]
    return x.double().numpy(), y.numpy()


def batches(
    n: int, name: str, round: int, purpose: str = "batches", epochs: int = EPOCHS
) -> Iterator[np.ndarray]:
    """Row numbers of the batches: the keyed order, and nothing else of ours."""
    order = chance.generator(0, purpose, round, name)
    for _ in range(epochs):
        rows = torch.randperm(n, generator=order).numpy()
        yield from (rows[at : at + SIZE] for at in range(0, n, SIZE))


def probabilities(w: Net, x: np.ndarray) -> np.ndarray:
    logits = x @ w["weight"].T + w["bias"]
    powers = np.exp(logits - logits.max(1, keepdims=True))
    return powers / powers.sum(1, keepdims=True)


def gradient(w: Net, x: np.ndarray, y: np.ndarray, weights: np.ndarray | None = None) -> Net:
    """Of the mean cross entropy; samples may be weighted."""
    off = probabilities(w, x) - np.eye(3)[y]
    if weights is not None:
        off = off * weights[:, None]
    return {"weight": off.T @ x / len(y), "bias": off.mean(0)}


def plus(w: Net, direction: Net, length: float) -> Net:
    return {name: w[name] + length * direction[name] for name in w}


def mean(nets: Mapping[str, Net], n: Mapping[str, int]) -> Net:
    total = sum(n[name] for name in nets)
    return {k: sum(n[c] * net[k] for c, net in nets.items()) / total for k in next(iter(nets.values()))}


def run(
    out: Path, method: str | Method, data: Any, *changes: str, rounds: int = 3, **given: Any
) -> intarsia.Run:
    settings = {
        "rounds": rounds,
        "method": method if isinstance(method, str) else "fedavg",
        "training": {"lr": LR, "batch_size": SIZE, "epochs": EPOCHS},
        "engine": {"name": "debug", "device": "cpu"},
    }
    given = {"model": linear(), "method": None if isinstance(method, str) else method, **given}
    return intarsia.run(settings, data=data, changes=changes, out=out, **given)


def own(run: intarsia.Run, client: str) -> Net:
    return as_net(run.client(client).model().state_dict())


def shared(run: intarsia.Run, address: str = "model@all", round: int | None = None) -> Net:
    return as_net(run.state(round).pool.get(Address.parse(address)).tensors)


def close(mine: Mapping[str, np.ndarray], reference: Net, rtol: float = 1e-4, atol: float = 1e-5) -> None:
    assert mine.keys() == reference.keys()
    for key in reference:
        np.testing.assert_allclose(mine[key], reference[key], rtol=rtol, atol=atol)


class Stop(intarsia.Observer):
    """Stops a run in the middle of a round."""

    def __init__(self, round: int) -> None:
        self.round = round

    def exchange_started(self, round: int, name: str, clients: int) -> None:
        if round == self.round:
            raise KeyboardInterrupt


def check_stopped(folder: Path, method: str, *changes: str) -> None:
    """Stop a run in its third round: gone on with, it must give the same to the last bit."""
    data, some = population(), [*changes, "sampling.clients=2"]
    whole = run(folder / "whole", method, data, *some, rounds=4)
    with pytest.raises(KeyboardInterrupt):
        run(folder / "cut", method, data, *some, rounds=4, observer=Stop(3))
    resumed = intarsia.resume(folder / "cut", data=data, model=linear())
    assert resumed.metrics == whole.metrics
    for name in data:
        one, two = own(whole, name), own(resumed, name)
        assert all(np.array_equal(one[key], two[key]) for key in one)
