"""A client's own model and all that is known of it, ready to be exported or used."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from intarsia._version import __version__
from intarsia.core import chance
from intarsia.data import Examples
from intarsia.data.population import Goal
from intarsia.export.graph import INPUT, Deployed, ExportError, Runner, traced
from intarsia.export.inputs import Inputs
from intarsia.models import plain_model
from intarsia.training.descent import inputs_of

FORMAT = 1
LIMIT = 1e-4
"""The largest difference from the original that is written; it is measured against numbers of at least 1."""
BATCH = 250


@dataclass(frozen=True)
class Check:
    """What an export was compared on, and how far it is from the original."""

    difference: float
    samples: int
    """Test samples of the client; none where they are not at hand."""
    made: int
    draws: bool
    """Whether the original draws its weights, so that the export, which has their means, is compared with those."""

    def __str__(self) -> str:
        made = f"{self.made} made inputs"
        on = f"{self.samples} test samples of the client and {made}" if self.samples else made
        absent = "" if self.samples else "; the client's data is not at hand"
        means = "; against the means of its weights: the original draws them" if self.draws else ""
        return f"largest difference from the original {self.difference:.1e} on {on}{absent}{means}"

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            "largest_difference": self.difference,
            "test_samples": self.samples,
            "made_inputs": self.made,
            "original_draws_weights": self.draws,
        }


@dataclass(frozen=True)
class Package:
    """A client's own model, its inputs and outputs, and what is known of it."""

    client: str
    model: nn.Module
    inputs: Inputs
    goal: Goal
    facts: Mapping[str, Any] = field(default_factory=dict)
    """Where the model comes from, for its record: method, run, round."""
    story: Mapping[str, Any] = field(default_factory=dict)
    """For its card: attributes, samples, labels, metrics, settings."""
    test: Examples | None = None
    """The client's test data, if it is at hand."""

    @property
    def classes(self) -> bool:
        """Whether it predicts labels."""
        return self.goal.problem == "classification"

    @functools.cached_property
    def deployed(self) -> Deployed:
        """The model as a plain network, with what comes before and after it."""
        return Deployed(self.inputs.module(), plain_model(self.model), self.inputs.preparation, self.classes)

    @functools.cached_property
    def graph(self) -> torch.export.ExportedProgram:
        """The model's graph, for any number of samples."""
        return traced(self.deployed, self.example)

    @property
    def example(self) -> Tensor:
        """A few raw samples, made by chance: nothing of a client's data goes into a file."""
        return self.made[:5]

    @functools.cached_property
    def made(self) -> Tensor:
        """Raw samples, made by chance."""
        return self.inputs.made(self.model, self.client)

    @property
    def labels(self) -> list[str]:
        """The labels in the order of the outputs; none in regression."""
        return self.goal.columns if self.classes else []

    @property
    def targets(self) -> list[str]:
        """The names of the numbers that are predicted, where they have names."""
        preparation = self.inputs.preparation
        return [column.name for column in preparation.targets] if preparation and not self.classes else []

    def about(self) -> dict[str, Any]:
        """Return what the exported files say of the model."""
        return {
            "format": FORMAT,
            "intarsia_version": __version__,
            "client": self.client,
            **self.facts,
            "problem": self.goal.problem,
            "labels": self.labels,
            "targets": self.targets,
            "input": {"name": INPUT, **self.inputs.to_json()},
            "outputs": list(self.deployed.names),
            "network": type(self.deployed.network).__name__,
            "parameters": sum(weight.numel() for weight in self.deployed.network.parameters()),
        }

    def compare(self, runner: Runner, what: str) -> Check:
        """Compare what an exported file gives with the original; too large a difference is an error."""
        worst = 0.0
        for raw, expected in self._expected:
            worst = max(worst, *(_difference(a, b) for a, b in zip(expected, runner(raw), strict=True)))
        if not worst <= LIMIT:
            raise ExportError(
                f"{what} is not written: it differs from the model of client '{self.client}' by {worst:.1e}, more than "
                f"{LIMIT:g}; try another format, and please report it"
            )
        return Check(worst, len(self.test) if self.test else 0, len(self.made), self._draws)

    @functools.cached_property
    def _draws(self) -> bool:
        """Whether the model gives something else every time."""
        x, found = self.inputs.prepared(self.example), []
        for number in range(2):
            with torch.no_grad(), chance.torch_seeded(0, "export", number, self.client):
                found.append(self.model.eval()(x.clone()))
        return not torch.equal(found[0], found[1])

    @functools.cached_property
    def _expected(self) -> list[tuple[Tensor, tuple[Tensor, Tensor]]]:
        """Raw samples, and what the original makes of them, computed as in training and evaluation."""
        original = self.deployed.network if self._draws else self.model.eval()
        with torch.no_grad():
            return [(raw, self._results(original(x))) for raw, x in self._samples()]

    def _samples(self) -> Iterator[tuple[Tensor, Tensor]]:
        yield self.made, self.inputs.prepared(self.made)
        for start in range(0, len(self.test) if self.test else 0, BATCH):
            assert self.test is not None
            rows = torch.arange(start, min(start + BATCH, len(self.test)))
            yield self.inputs.raw(self.test.x[rows]), inputs_of(self.test, rows).clone()

    def _results(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
        if self.classes:
            return outputs, outputs.softmax(1)
        outputs = outputs.reshape(len(outputs), -1)
        preparation = self.inputs.preparation
        if preparation is None or not preparation.targets:
            return outputs, outputs
        return outputs, torch.from_numpy(preparation.predicted(outputs.numpy()))


def _difference(expected: Tensor, found: Tensor) -> float:
    """Return the largest difference, of large numbers relative to them; infinite if it cannot be told."""
    if expected.shape != found.shape:
        return float("inf")
    apart = (expected.double() - found.double()).abs() / expected.double().abs().clamp(min=1)
    return float(apart.nan_to_num(nan=torch.inf).max()) if apart.numel() else 0.0
