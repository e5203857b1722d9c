"""Federated averaging of normalised changes."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from intarsia.blocks import Merge, Nova
from intarsia.core import part
from intarsia.methods.base import Method


@part
class FedNova(Method):
    """FedAvg that takes out the bias towards clients with more local steps.

    Wang et al. 2020, "Tackling the objective inconsistency problem in heterogeneous federated
    optimization", eq. 6 with tau_eff = sum p_i |a_i|. Deviations: parameters only; buffers (BatchNorm
    statistics) are averaged, because normalising them can make a variance negative.
    """

    name: ClassVar[str] = "fednova"
    title: ClassVar[str] = "FedNova"

    merge: Merge = Field(default_factory=Nova)
