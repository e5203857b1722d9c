"""DP-SGD at a client (Abadi et al. 2016): every sample's gradient is held to a bound, and their sum gets noise.

Per-sample gradients are Opacus's. Batches are drawn by chance, each sample by itself; nothing is told of how training
went, since no noise would cover that.
"""

from __future__ import annotations

import logging
import math
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from intarsia.core import SettingsError
from intarsia.data import Examples
from intarsia.models.adapters import ConvAdapter
from intarsia.training.descent import Descent, Score, Trained, device_of, inputs_of
from intarsia.training.objectives import Situation
from intarsia.training.precision import Precision, arithmetic
from intarsia.training.settings import Training
from intarsia.trust import Privacy
from intarsia.trust.noise import Randomness, Word, randomness

CURES = {
    "BatchNorm": "statistics of a batch mix its samples: give the model group norms instead",
    "LSTM": "its gates hide single gradients: give the model opacus.layers.DPLSTM instead",
}


@dataclass(frozen=True)
class PrivateSteps:
    """How a client's samples are protected in one local step: the bound, the noise, and where chance comes from."""

    privacy: Privacy
    source: Randomness
    purpose: tuple[Word, ...]

    @classmethod
    def of(cls, privacy: Privacy, seed: int, *purpose: Word) -> PrivateSteps:
        """Return those of a purpose."""
        return cls(privacy, randomness(privacy.randomness, seed), purpose)

    def batch(self, samples: int, chance: float, step: int) -> Tensor:
        """Return the rows of a batch: each sample is in it by a chance of its own."""
        drawn = self.source.uniform(samples, "example batch", *self.purpose, step)
        return torch.from_numpy(np.flatnonzero(drawn <= chance))

    def noise(self, like: Tensor, name: str, step: int) -> Tensor:
        """Return the noise on the sum of bounded gradients of one parameter."""
        drawn = self.source.normal(like.numel(), "example noise", *self.purpose, step, name)
        return torch.from_numpy(drawn).view(like.shape).mul_(self.privacy.noise * self.privacy.clip).to(like)


def steps_of(samples: int, training: Training) -> tuple[float, int]:
    """Return the chance of a sample to be in a batch, and how many batches a client's training has."""
    return min(1.0, training.batch_size / samples), training.epochs * math.ceil(samples / training.batch_size)


def train_privately(at: Situation, descent: Descent, examples: Examples, how: PrivateSteps) -> Trained:
    """Train the model in place; return how many steps that took, and nothing else of it."""
    model, weights = at.model, {n: p for n, p in at.model.named_parameters() if p.requires_grad}
    chance, steps = steps_of(len(examples), descent.training)
    steps = steps // descent.training.epochs * descent.epochs
    optimiser = descent.optimiser(list(weights.values()))
    model.train()
    with per_sample(model) as wrapped:
        for step in range(steps):
            rows = how.batch(len(examples), chance, step)
            sums = _bounded_sums(
                at, wrapped, weights, examples, rows, how.privacy.clip, descent.training.precision
            )
            for name, weight in weights.items():
                weight.grad = (sums[name] + how.noise(weight, name, step)) / (chance * len(examples))
                if descent.objective.pull and name in at.received:
                    weight.grad.add_(weight.detach() - at.received[name], alpha=descent.objective.pull)
            optimiser.step()
    untold = Score(0, 0 if at.loss.hits else -1, math.nan)
    return Trained(untold, steps, descent.step_weight(steps))


def _bounded_sums(
    at: Situation,
    wrapped: Any,
    weights: dict[str, nn.Parameter],
    examples: Examples,
    rows: Tensor,
    bound: float,
    precision: Precision,
) -> dict[str, Tensor]:
    """Return the sum over samples of gradients that are no longer than the bound."""
    if not len(rows):
        return {name: torch.zeros_like(weight) for name, weight in weights.items()}
    each = gradients_of(at, wrapped, weights, examples, rows, precision)
    norms = torch.stack([g.flatten(1).norm(dim=1) for g in each.values()]).norm(dim=0)
    share = (bound / norms.clamp(min=1e-12)).clamp(max=1.0)
    return {name: torch.einsum("i,i...->...", share, gradient) for name, gradient in each.items()}


def gradients_of(
    at: Situation,
    wrapped: Any,
    weights: dict[str, nn.Parameter],
    examples: Examples,
    rows: Tensor,
    precision: Precision = "fp32",
) -> dict[str, Tensor]:
    """Return every sample's own gradient of its loss, by parameter; a parameter that has none has zeros.

    Opacus multiplies on the way back what layers took and gave, which may be of two kinds: hence the arithmetic there.
    """
    device = device_of(at.model)
    x, y = inputs_of(examples, rows).to(device), examples.y.index_select(0, rows).to(device)
    loss = at.loss(wrapped(x), y) * len(rows)
    with arithmetic(precision, device):
        loss.backward()  # type: ignore[no-untyped-call]
    each = {n: getattr(p, "grad_sample", None) for n, p in weights.items()}
    for weight in weights.values():
        weight.grad = weight.grad_sample = None  # type: ignore[attr-defined]
    return {
        n: weights[n].new_zeros(len(rows), *weights[n].shape) if g is None else g.to(weights[n])
        for n, g in each.items()
    }


@contextmanager
def per_sample(model: nn.Module) -> Iterator[Any]:
    """Give the model as one that keeps every sample's gradient; afterwards it is as before."""
    adapters = [
        (m, m.adapter.stride) for m in model.modules() if isinstance(m, ConvAdapter) and m.form == "parallel"
    ]
    for module, _ in adapters:
        module.apart, module.adapter.stride = True, module.base.stride
    wrapped = _opacus().GradSampleModule(model, loss_reduction="sum")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of hooks that see no gradient of the inputs
            yield wrapped
    finally:
        wrapped.remove_hooks()
        for weight in model.parameters():
            vars(weight).pop("grad_sample", None)
        for module, stride in adapters:
            module.apart, module.adapter.stride = False, stride


def check_model(model: nn.Module) -> None:
    """Raise if single samples' gradients cannot be told apart in a model, with what to do."""
    from opacus.validators import ModuleValidator

    _opacus()
    faults = ModuleValidator.validate(model, strict=False)
    kinds = [type(m).__name__ for m in model.modules()]
    for word, cure in CURES.items():
        if faults and any(word in kind for kind in kinds):
            raise SettingsError(f'privacy.level: "example" cannot be had with {word} layers: {cure}')
    if faults:
        raise SettingsError(f'privacy.level: "example" cannot be had with this model: {faults[0]}')


def check_gradients(at: Situation, examples: Examples) -> None:
    """Raise if what is taken for single samples' gradients does not add up to the usual gradient."""
    weights = {n: p for n, p in at.model.named_parameters() if p.requires_grad}
    rows = torch.arange(min(2, len(examples)))
    at.model.train()
    with torch.random.fork_rng(devices=[]):
        state = torch.get_rng_state()
        with per_sample(at.model) as wrapped:
            each = gradients_of(at, wrapped, weights, examples, rows)
        torch.set_rng_state(state)
        loss = at.loss(at.model(inputs_of(examples, rows)), examples.y[rows]) * len(rows)
        usual = torch.autograd.grad(loss, list(weights.values()), allow_unused=True)
    for (name, gradient), one in zip(each.items(), usual, strict=True):
        expected = torch.zeros_like(gradient[0]) if one is None else one
        if not torch.allclose(gradient.sum(0), expected, rtol=1e-3, atol=1e-5):
            raise SettingsError(
                f"privacy.level: \"example\": the gradients of single samples of '{name}' do not add up: its layer "
                "uses the parameter in a way that Opacus does not see; choose another model"
            )


def _opacus() -> Any:
    """Return Opacus, which is only loaded where samples are protected."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import opacus
    except ImportError as error:
        raise SettingsError(
            "privacy.level: \"example\" needs Opacus: pip install 'intarsia[privacy]'"
        ) from error
    logging.getLogger("opacus").setLevel(logging.ERROR)
    return opacus
