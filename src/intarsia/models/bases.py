"""Bases: trained weights in a safetensors file, with a card that says what they are."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import safetensors.torch
from torch import Tensor, nn

from intarsia.core import SettingsError
from intarsia.models.weights import head_of, load_weights, read_safetensors

CARD = "card"
"""The entry of a file's metadata that holds the card, as JSON."""

Card = Mapping[str, Any]
"""What is known of weights: `architecture`, `parameters`, `inputs`, `trained_on` and more."""


@runtime_checkable
class HasNetworks(Protocol):
    """A model of several networks that weights of one can start: a pool of encoders."""

    def networks_for(self, architecture: str) -> Sequence[nn.Module]:
        """Return the networks that weights of an architecture are for; it is empty where a file does not say which."""


@dataclass(frozen=True)
class Base:
    """Weights from a file, under the names of the model's tensors."""

    path: Path
    sha256: str
    tensors: Mapping[str, Tensor]
    card: Card = field(default_factory=dict)
    """Empty for a file that was not written here."""

    @classmethod
    def read(cls, path: Path) -> Base:
        """Read a safetensors file; one without a card will do."""
        data, tensors = read_safetensors(path)
        try:
            card = json.loads(metadata_of(data).get(CARD, "{}"))
        except ValueError as error:
            raise SettingsError(f"weights: {path} has a card that is no JSON: {error}") from error
        return cls(path, hashlib.sha256(data).hexdigest(), tensors, card)

    def check(self, architectures: Collection[str], inputs: Collection[str]) -> None:
        """Refuse to be the base of other architectures, or for inputs of another scale, than the card's."""
        mine = self.card.get("architecture", {}).get("name")
        if mine and architectures and mine not in architectures:
            raise SettingsError(
                f"weights: {self.path} holds a '{mine}', the model is '{min(architectures)}': "
                f'set model.name = "{mine}", or give weights of such a model'
            )
        wanted = self.card.get("inputs")
        other = next((kind for kind in inputs if wanted and kind != wanted), None)
        if other is not None:
            raise SettingsError(
                f"weights: {self.path} was trained on {wanted} inputs, the population's are {other}: "
                f"set population.standardise = {'true' if wanted == 'standardised' else 'false'}"
            )

    def fill(self, model: nn.Module) -> None:
        """Put the weights into a model, or into those of its networks that they are for."""
        name = self.card.get("architecture", {}).get("name", "")
        for network in model.networks_for(name) if isinstance(model, HasNetworks) else (model,):
            self._fill(network)

    def _fill(self, model: nn.Module) -> None:
        """Put the weights into a network; only an output layer of another size keeps its own."""
        lacking = load_weights(model, self.tensors, where=str(self.path))
        state = model.state_dict()
        lost = [n for n in lacking if state[n].is_floating_point() and not n.startswith(head_of(state))]
        if lost:
            raise SettingsError(
                f"weights: {self.path} lacks {len(lost)} tensors of the model, '{lost[0]}' first: the rest would "
                f"stay random; give weights of the same architecture{self._is()}"
            )

    def _is(self) -> str:
        known = self.card.get("architecture")
        return f" (these are of {json.dumps(known)})" if known else ""

    def to_json(self) -> dict[str, Any]:
        """Return what a run records of its base."""
        return {"weights": str(self.path), "sha256": self.sha256, "card": dict(self.card)}


def base_bytes(tensors: Mapping[str, Tensor], card: Card) -> bytes:
    """Return weights and their card as the content of a safetensors file."""
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    return safetensors.torch.save(plain, {CARD: json.dumps(card)})


def metadata_of(data: bytes) -> dict[str, str]:
    """Return the metadata in the head of a safetensors file."""
    length = int.from_bytes(data[:8], "little")
    return dict(json.loads(data[8 : 8 + length]).get("__metadata__", {}))


def base_in_words(origin: Mapping[str, Any]) -> str:
    """Say in a few words where the weights come from that a run started with; nothing if it does not matter."""
    weights = origin.get("weights", "")
    if weights == "earlier run":
        return base_in_words(origin["base"]) or "base of an earlier run"
    named = {"": "", "random": "random base", "given": "base as given in Python"}
    if weights in named:
        return named[weights]
    trained_on = origin["card"].get("trained_on")
    return f"base trained on {trained_on}" if trained_on else f"base {Path(weights).name}"
