"""Architectures as plain data: what can travel and be built again elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from pydantic import TypeAdapter
from torch import nn

from intarsia.core import SettingsError, chance, part

Shape = tuple[int, ...]


@part
class Architecture:
    """A registered architecture with its settings; `build` makes the network for given shapes."""

    name: ClassVar[str]
    summary: ClassVar[str]

    @property
    def bases(self) -> tuple[str, ...]:
        """Architectures whose weights, from a file, its networks can start from."""
        return (self.name,)

    def build(self, shape: Shape, outputs: int) -> nn.Module:
        """Return a new network for inputs of this shape (without the batch) and this many outputs."""
        raise SettingsError(f"{type(self).__name__} does not say how it is built: give it a method build")


@dataclass(frozen=True)
class Spec:
    """An architecture and the shapes that it is built for."""

    architecture: Architecture
    shape: Shape
    outputs: int

    def build(self, seed: int) -> nn.Module:
        """Return the network with its initial weights: the same for the same spec and seed."""
        with chance.torch_seeded(seed, "initial weights", repr(sorted(self.to_json().items()))):
            return self.architecture.build(self.shape, self.outputs)

    def to_json(self) -> dict[str, Any]:
        """Return the spec as plain values."""
        options = TypeAdapter(type(self.architecture)).dump_python(self.architecture, mode="json")
        return {
            "name": self.architecture.name,
            "options": options,
            "shape": list(self.shape),
            "outputs": self.outputs,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any], known: Mapping[str, type[Architecture]]) -> Spec:
        """Read a spec; only registered architectures can be built."""
        if data.get("name") not in known:
            raise SettingsError(f"there is no architecture {data.get('name')!r}; there are: {sorted(known)}")
        return cls(known[data["name"]](**data["options"]), tuple(data["shape"]), data["outputs"])
