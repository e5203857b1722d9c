"""What all contestants of a workload are given, as files: data, initial weights, who trains when on what."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor


@dataclass(frozen=True)
class Task:
    """A folder with `task.json`, `x.npy`, `y.npy`, `x_test.npy`, `y_test.npy`, `cohorts.npy`, `orders.npy`."""

    folder: Path

    @cached_property
    def about(self) -> dict[str, Any]:
        """The workload as plain values."""
        told: dict[str, Any] = json.loads((self.folder / "task.json").read_text())
        return told

    @cached_property
    def x(self) -> Tensor:
        """Inputs of all clients: (clients, samples, ...); mapped, so that processes share the pages."""
        return self._load("x")

    @cached_property
    def y(self) -> Tensor:
        """Labels of all clients: (clients, samples)."""
        return self._load("y")

    @cached_property
    def test(self) -> tuple[Tensor, Tensor]:
        """Test inputs and labels of all clients."""
        return self._load("x_test"), self._load("y_test")

    @cached_property
    def cohorts(self) -> Tensor:
        """The numbers of the clients of each round: (rounds, clients a round)."""
        return self._load("cohorts")

    @cached_property
    def orders(self) -> Tensor:
        """The order in which each client of each round sees its samples, epoch after epoch."""
        return self._load("orders")

    @cached_property
    def weights(self) -> dict[str, Tensor]:
        """The initial weights."""
        return load_file(self.weights_file)

    @property
    def weights_file(self) -> Path:
        """The file of the initial weights."""
        return self.folder / "weights.safetensors"

    def evaluates(self, round: int) -> bool:
        """Return whether the shared model is evaluated on every client's test data after a round (from 1)."""
        every = int(self.about["evaluate_every"])
        return bool(every) and round % every == 0

    def _load(self, name: str) -> Tensor:
        return torch.from_numpy(np.load(self.folder / f"{name}.npy", mmap_mode="c"))
