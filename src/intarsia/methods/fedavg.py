"""Federated averaging."""

from __future__ import annotations

from typing import ClassVar

from intarsia.core import part
from intarsia.methods.base import Method


@part
class FedAvg(Method):
    """One model for all: local training, then the mean weighted by samples.

    McMahan et al. 2017, "Communication-efficient learning of deep networks from decentralized data",
    Algorithm 1. Deviations: none; buffers are part of the model (floats: mean, integers: maximum).
    """

    name: ClassVar[str] = "fedavg"
    title: ClassVar[str] = "FedAvg"
