"""Counted multiplications: what a client computes in an exchange, layer by layer of its model.

A layer that multiplies m times for a sample does so once on the way forward; on the way back once more for the gradient
of its weights, if they are trained, and once more for that of its input, if anything that this depends on is trained.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from intarsia.blocks import ClientPlan
from intarsia.data import ClientInfo
from intarsia.federation.fleet.layers import Layer, layers_of
from intarsia.methods import EVALUATE
from intarsia.setup import Setup


class Work:
    """Counts what clients compute; each kind of model is passed through once."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self._layers: dict[tuple[str, tuple[int, ...]], list[Layer]] = {}
        self._counted: dict[tuple[object, ...], float] = {}

    def multiplications(self, info: ClientInfo, plan: ClientPlan, step: str) -> float:
        """Return how many multiplications a client's part of an exchange takes."""
        held, trained = frozenset(plan.hold), plan.train & self.setup.template(info.name).changing
        key = (self.setup.model_of[info.name], info.shape, held, trained, step)
        if key not in self._counted:
            self._counted[key] = self._passes(self.layers(info), held, trained, step)
        return self._counted[key] * info.train_samples

    def a_sample(self, info: ClientInfo) -> float:
        """Return how many multiplications one sample takes in training with all of the model trained."""
        layers = self.layers(info)
        blocks = {layer.block for layer in layers}
        return sum(layer.multiplications * (1 + layer.back(blocks, frozen_too=True)) for layer in layers)

    def layers(self, info: ClientInfo) -> list[Layer]:
        """Return the layers of a client's model that multiply, in the order in which they do."""
        key = (self.setup.model_of[info.name], info.shape)
        if key not in self._layers:
            template = self.setup.template(info.name)
            self._layers[key] = layers_of(
                template.model, template.cut, info.shape, self.setup.method.rehearse
            )
        return self._layers[key]

    def _passes(
        self, layers: Sequence[Layer], held: Collection[str], trained: Collection[str], step: str
    ) -> float:
        """Return the multiplications for each training sample, over all passes of the step."""
        total = 0.0
        for layer in layers:
            if layer.block and layer.block not in held:
                continue
            back, seen = self.setup.method.passes(step, layer.block, self.setup.training)
            if not trained or step == EVALUATE:
                back, seen = 0.0, max(float(back > 0), seen)
            total += layer.multiplications * (seen + back * (1 + layer.back(trained)))
        return total
