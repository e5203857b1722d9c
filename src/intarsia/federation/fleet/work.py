"""Counted multiplications: what a client computes in an exchange, layer by layer of its model.

A layer that multiplies m times for a sample does so once on the way forward; on the way back once more for the gradient
of its weights, if they are trained, and once more for that of its input, if anything before it is trained.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from intarsia.blocks import ClientPlan
from intarsia.data import ClientInfo
from intarsia.methods import EVALUATE
from intarsia.setup import Setup, Template

Rehearse = Callable[[nn.Module, Tensor], None]


@dataclass(frozen=True)
class Layer:
    """What one layer of a model needs for one sample, and which block its weights belong to (empty: it has none)."""

    block: str
    multiplications: float
    trainable: bool


class Work:
    """Counts what clients compute; each kind of model is passed through once."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self._layers: dict[tuple[str, tuple[int, ...]], list[Layer]] = {}
        self._counted: dict[tuple[object, ...], float] = {}

    def multiplications(self, info: ClientInfo, plan: ClientPlan, step: str) -> float:
        """Return how many multiplications a client's part of an exchange takes."""
        own = self._held(info, plan)
        trained = plan.train & self.setup.template(info.name).changing
        key = (self.setup.model_of[info.name], info.shape, frozenset(own), trained, step)
        if key not in self._counted:
            self._counted[key] = self._passes(self.layers(info), own, trained, step)
        return self._counted[key] * info.train_samples

    def a_sample(self, info: ClientInfo) -> float:
        """Return how many multiplications one sample takes in training with all of the model trained."""
        layers = self.layers(info)
        first = next((i for i, layer in enumerate(layers) if layer.block), 0)
        return sum(
            layer.multiplications * (1 + (layer.block != "") + (i > first)) for i, layer in enumerate(layers)
        )

    def layers(self, info: ClientInfo) -> list[Layer]:
        """Return the layers of a client's model that multiply, in the order in which they do."""
        key = (self.setup.model_of[info.name], info.shape)
        if key not in self._layers:
            rehearse = self.setup.method.rehearse
            self._layers[key] = list(_layers_of(self.setup.template(info.name), info.shape, rehearse))
        return self._layers[key]

    def _held(self, info: ClientInfo, plan: ClientPlan) -> set[str]:
        """Return the blocks that are computed with: what the plan names, frozen ones as everything else."""
        return set(plan.hold) if plan.hold else set(self.setup.template(info.name).initial)

    def _passes(
        self, layers: list[Layer], held: Collection[str], trained: Collection[str], step: str
    ) -> float:
        """Return the multiplications for each training sample, over all passes of the step."""
        total, behind = 0.0, False
        for layer in layers:
            if layer.block and layer.block not in held:
                continue
            own = layer.trainable and layer.block in trained
            back, seen = self.setup.method.passes(step, layer.block, self.setup.training)
            if not trained or step == EVALUATE:
                back, seen = 0.0, max(back > 0, seen)
            total += layer.multiplications * (seen + back * (1 + own + behind))
            behind = behind or own
        return total


def _layers_of(template: Template, shape: tuple[int, ...], rehearse: Rehearse) -> Iterator[Layer]:
    """Yield the layers that multiply, in the order in which they are first used."""
    model = copy.deepcopy(template.model).to("cpu").eval()
    block_of = {name: block for block, own in template.cut.fit(model).members.items() for name in own}
    root = type(model).__name__
    for path, count in _counts(model, shape, rehearse).items():
        name = path.removeprefix(root).removeprefix(".")
        weights = {f"{name}.{own}" if name else own: w for own, w in _weights(model, name).items()}
        block = next((block_of[own] for own in weights if own in block_of), "")
        yield Layer(block, count, any(weight.requires_grad for weight in weights.values()))


def _weights(model: nn.Module, name: str) -> dict[str, nn.Parameter]:
    return dict(model.get_submodule(name).named_parameters(recurse=False))


def _counts(model: nn.Module, shape: tuple[int, ...], rehearse: Rehearse) -> dict[str, float]:
    """Return the multiplications of one sample by module, those of the modules inside taken out."""
    counter = FlopCounterMode(display=False)
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        with torch.backends.mkldnn.flags(
            enabled=False
        ):  # a recurrent layer is one operation there, uncounted
            try:
                with counter:
                    rehearse(model, torch.zeros(1, *shape))
            except (RuntimeError, TypeError, IndexError):
                counter = FlopCounterMode(display=False)
                with counter:
                    rehearse(model, torch.zeros(1, *shape, dtype=torch.long))
    # One multiplication with its addition counts as two operations there.
    whole = {
        path: sum(ops.values()) / 2 for path, ops in counter.get_flop_counts().items() if path != "Global"
    }
    return {path: own for path, count in whole.items() if (own := count - _inside(path, whole)) > 0}


def _inside(path: str, whole: Mapping[str, float]) -> float:
    """Return what is counted in the modules right below one."""
    below = [other for other in whole if other.startswith(f"{path}.")]
    nearest = [o for o in below if not any(o.startswith(f"{between}.") for between in below)]
    return sum(whole[other] for other in nearest)
