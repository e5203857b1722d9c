"""Federated averaging of normalised changes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar

from pydantic import Field

from intarsia.blocks import Block, Merge, Sums
from intarsia.core import Refused, part
from intarsia.methods.base import Method

SMALLEST = 0.5
"""The smallest weight of local steps that is merged: one step weighs about 1."""


@part
class Nova(Merge):
    """FedNova's normalised averaging (Wang et al. 2020, eq. 6) of the parameters; buffers: mean.

    Every holder's change is divided by the weight of its local steps (`step_weight` of its update, the
    norm of a_i), and the mean of those is applied tau_eff = sum p_i |a_i| times.
    """

    name: ClassVar[str] = "nova"
    gain: ClassVar[float] = 1 / SMALLEST
    adds_up: ClassVar[bool] = True
    essential: ClassVar[bool] = True

    def add(
        self, sums: Sums, present: Block, update: Block, samples: int, values: Mapping[str, object]
    ) -> None:
        """Add one holder's normalised change."""
        step_weight = _step_weight(values)
        for name, tensor in update.tensors.items():
            divisor = 1.0 if name in present.buffers else step_weight
            weight = samples / sums.planned / divisor
            self._add_tensor(sums, name, present.tensors[name], tensor, weight)
        sums.samples += samples
        sums.scalars.extend(self.scalars(samples, values))

    def scalars(self, samples: int, values: Mapping[str, object]) -> list[float]:
        """Return the weight of all steps of a holder."""
        return [samples * _step_weight(values)]

    def finish(self, sums: Sums, present: Block) -> Block:
        """Return present + tau_eff * mean of the normalised changes."""
        if sums.samples == 0:
            return present
        steps = math.fsum(sums.scalars) / sums.samples
        tensors = {}
        for name, now in present.tensors.items():
            if name in sums.grids:
                times = 1.0 if name in present.buffers else steps
                tensors[name] = sums.moved(name, now, times)
            else:
                tensors[name] = sums.tensors[name]
        return Block(tensors, present.buffers)


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


def _step_weight(values: Mapping[str, object]) -> float:
    weight = values.get("step_weight")
    if not isinstance(weight, (int, float)) or isinstance(weight, bool) or not SMALLEST <= weight < math.inf:
        raise Refused(
            f"FedNova needs a 'step_weight' in the update, about the number of steps, got {weight!r}; "
            "with a proximal objective, keep lr * mu well below 1"
        )
    return float(weight)
