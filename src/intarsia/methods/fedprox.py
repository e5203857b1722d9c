"""Federated averaging with a proximal term."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from intarsia.core import part
from intarsia.methods.base import Method
from intarsia.training import Objective, Proximal


@part
class FedProx(Method):
    """FedAvg whose clients minimise the loss + mu/2 |w - w_t|^2.

    Li et al. 2020, "Federated optimization in heterogeneous networks", Algorithm 2, eq. 2. Deviations:
    the work of a client is a number of epochs, not a gamma-inexact solution; means are weighted by samples,
    where the paper samples clients by their weight and takes the plain mean.
    """

    name: ClassVar[str] = "fedprox"
    title: ClassVar[str] = "FedProx"

    objective: Objective = Field(default_factory=Proximal)
