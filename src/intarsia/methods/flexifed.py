"""Models of different architectures share the layers that they begin with."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from glob import escape
from itertools import takewhile
from typing import ClassVar, Literal

from pydantic import Field
from torch import nn

from intarsia.blocks import ME, Cut
from intarsia.core import part
from intarsia.data import ClientInfo
from intarsia.methods.base import Method, Sharing
from intarsia.methods.server import Groups
from intarsia.models import layers_of

Chain = tuple[str, ...]
"""The forms of a model's layers, from its input on."""


@part
class CommonLayers(Sharing):
    """One block a layer: `layer-1`, `layer-2`, ...; with those whose models are alike up to it.

    Layers are alike if they have the same type, settings, names and shapes. A layer that nobody else has
    stays at home.
    """

    name: ClassVar[str] = "flexifed"
    needs: ClassVar[frozenset[str]] = frozenset({"layer-1"})

    variant: Literal["basic", "clustered", "max"] = "max"
    """`basic`: the layers that all models begin with are shared by everyone, the others stay at home. `clustered`:
    the others are shared within an architecture. `max`: every layer is shared by all models that are alike up to
    it."""

    def cut(self, model: nn.Module) -> Cut:
        """Cut between all layers."""
        return Cut(
            {_block(n): tuple(map(escape, layer.tensors)) for n, layer in enumerate(layers_of(model), 1)}
        )

    def group(self, block: str, client: ClientInfo) -> str:
        """Return the client itself: who shares a layer follows from all clients' models."""
        return ME

    def groups_by_model(self, clients: Sequence[tuple[ClientInfo, nn.Module]]) -> Groups:
        """Return who shares which layer, among everyone that could."""
        forms = {id(model): tuple(layer.form for layer in layers_of(model)) for _, model in clients}
        crowds: dict[str, dict[str, Chain]] = {}
        for info, model in clients:
            crowds.setdefault(self.everyone(info), {})[info.name] = forms[id(model)]
        groups: Groups = {}
        for crowd, chains in crowds.items():
            counts = Counter(chains.values())
            named = {chain: self._groups(crowd, chain, counts) for chain in counts}
            for client, chain in chains.items():
                for number, group in enumerate(named[chain], 1):
                    groups.setdefault(_block(number), {})[client] = group
        return groups

    def _groups(self, crowd: str, chain: Chain, counts: Mapping[Chain, int]) -> list[str]:
        """Return the group of every layer of an architecture; `counts` says how many clients have which."""
        common = common_layers(list(counts))
        return [
            crowd if n <= common else self._group_beyond(crowd, chain, n, counts)
            for n in range(1, len(chain) + 1)
        ]

    def _group_beyond(self, crowd: str, chain: Chain, n: int, counts: Mapping[Chain, int]) -> str:
        """Return the group of a layer that not all have."""
        length = n if self.variant == "max" else None
        holders = sum(count for other, count in counts.items() if other[:length] == chain[:length])
        if self.variant == "basic" or holders == 1:
            return ME
        kind = "prefix" if self.variant == "max" else "architecture"
        name = f"{kind}-{hashlib.sha256(repr(chain[:length]).encode()).hexdigest()[:8]}"
        return f"{crowd}/{name}" if self.by else name


def common_layers(chains: Sequence[Chain]) -> int:
    """Return how many layers all these architectures begin with."""
    alike = (len(set(forms)) == 1 for forms in zip(*chains, strict=False))
    return sum(takewhile(bool, alike))


def _block(number: int) -> str:
    return f"layer-{number}"


@part
class FlexiFed(Method):
    """FedAvg, layer by layer, over the layers that clients' architectures have in common.

    Wang et al. 2023, "FlexiFed: personalized federated learning for edge clients with heterogeneous model
    architectures": its strategies Basic-Common, Clustered-Common and Max-Common, as `sharing.variant`. Models whose
    first layers differ share nothing under `basic` (every client is on its own) and within their architecture
    under the others. Ours: means are weighted by samples; layers are compared with their names and settings,
    too, as tensors are shared by name; layers without weights are not compared; what nobody else has never travels.
    """

    name: ClassVar[str] = "flexifed"
    title: ClassVar[str] = "FlexiFed"

    sharing: Sharing = Field(default_factory=CommonLayers)
