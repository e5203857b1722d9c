"""A pool of modules in layers, from which every client assembles its own network (FedMN)."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import BeforeValidator, Field, PlainSerializer
from torch import Tensor, nn

from intarsia.core import SettingsError, build_part, describe, part
from intarsia.methods.fedmn.links import (
    Layers,
    Place,
    active_blocks,
    block_name,
    count_links,
    link_ends,
    matrices,
)
from intarsia.models.architectures.chains import Size
from intarsia.models.architectures.mobilenet import MobileNetV2
from intarsia.models.architectures.modular import ModularLSTM
from intarsia.models.architectures.simple import CNN, MLP
from intarsia.models.architectures.text import CharLSTM, CharTransformer
from intarsia.models.spec import Architecture, Shape

ENCODERS: dict[str, type[Architecture]] = {
    kind.name: kind for kind in (MLP, CNN, MobileNetV2, ModularLSTM, CharLSTM, CharTransformer)
}
"""Networks that can be encoders: with as many outputs as there are features, and a ReLU."""


def _encoder(value: Any) -> Any:
    if isinstance(value, Architecture):
        return value
    return build_part(ENCODERS, {"name": value} if isinstance(value, str) else value, "model.encoder")


EncoderChoice = Annotated[Architecture, BeforeValidator(_encoder), PlainSerializer(describe)]


class ModulePool(nn.Module):
    """Layers of blocks and gates on the links between them; a block's input is the mean over its open links.

    Wang et al. 2022 (FedMN), eq. 11. A block that no encoder reaches or that does not reach the output takes
    no part: it emits nothing and stands in no denominator. With all gates at one, every block is used.
    """

    def __init__(self, layout: ModulePoolLayout, shape: Shape, outputs: int) -> None:
        super().__init__()
        self.layout, self.shape, self.outputs = layout, shape, outputs
        self.layers: Layers = layout.layers
        self.given = False
        """Whether the encoders began with weights of a file."""
        for place in self.places:
            self.add_module(self.block_name(place), self._block(place))
        if layout.init == "he":
            self.apply(_he)
        self.gates: Tensor
        self.register_buffer("gates", torch.ones(count_links(self.layers)))
        self.gating: Callable[[], Tensor] | None = None
        """While gates are learned: gives them anew, with their gradient, for every batch."""

    @property
    def places(self) -> list[Place]:
        """All blocks, from the encoders to the heads."""
        return [(layer, number) for layer, width in enumerate(self.layers) for number in range(width)]

    @property
    def selectable(self) -> list[str]:
        """The names of the blocks behind the encoders: a client may do without some of them."""
        return [self.block_name(place) for place in self.places[self.layers[0] :]]

    def block_name(self, place: Place) -> str:
        """Return the name of a block: `encoder1`, `block2-1`, ..., `head1`."""
        return block_name(self.layers, place)

    def active_names(self, gates: Sequence[float]) -> list[str]:
        """Return the names of the blocks that take part, by links that are open."""
        return [self.block_name(place) for place in sorted(active_blocks(self.layers, torch.tensor(gates)))]

    def size_of(self, place: Place) -> int:
        """Return how many weights a block has."""
        return sum(weight.numel() for weight in self._at(place).parameters())

    def new_encoder(self, size: int) -> nn.Module:
        """Return a new encoder of the pool's kind for the same inputs, with as many features.

        Where the pool's encoders began with given weights, so does this one, but for layers of another size.
        """
        encoder = self.layout.encode(self.shape, size, self.outputs)
        if self.given:
            own = encoder.state_dict()
            first = self._at((0, 0)).state_dict()
            encoder.load_state_dict({n: first[n] if first[n].shape == t.shape else t for n, t in own.items()})
        return encoder

    def networks_for(self, architecture: str) -> list[nn.Module]:
        """Return the networks that given weights are for: the whole pool, or every encoder, and so a router's too."""
        if architecture == self.layout.name:
            return [self]
        self.given = True
        return [self._at((0, number)).get_submodule("network") for number in range(self.layers[0])]

    def forward(self, x: Tensor) -> Tensor:
        """Return the mean of the heads whose link to the output is open."""
        gates = self.gates if self.gating is None else self.gating()
        active = active_blocks(self.layers, gates.detach())
        return self.behind(self._encoded(x, active), gates, active)

    def encoded(self, x: Tensor) -> dict[int, Tensor]:
        """Return what every encoder makes of the input."""
        return {number: self._at((0, number))(x) for number in range(self.layers[0])}

    def behind(self, encoded: Mapping[int, Tensor], gates: Tensor, active: frozenset[Place]) -> Tensor:
        """Return the outputs, from what the encoders gave."""
        outputs = dict(encoded)
        ways = matrices(self.layers, gates)
        for layer in range(1, len(self.layers)):
            outputs = {
                k: self._at((layer, k))(_mean(outputs, ways[layer - 1][:, k]))
                for k in range(self.layers[layer])
                if (layer, k) in active
            }
        return _mean(outputs, ways[-1][:, 0])

    def plain(self) -> nn.Module:
        """Return the network that the open gates assemble."""
        blocks = {self.block_name(p): self._at(p) for p in sorted(active_blocks(self.layers, self.gates))}
        links: dict[str, dict[str, float]] = {}
        for gate, (start, end) in zip(self.gates.tolist(), link_ends(self.layers), strict=True):
            name = OUTPUT if end[0] == len(self.layers) else self.block_name(end)
            if gate and self.block_name(start) in blocks and name in {*blocks, OUTPUT}:
                links.setdefault(name, {})[self.block_name(start)] = gate
        return Assembled(blocks, links)

    def _encoded(self, x: Tensor, active: frozenset[Place]) -> dict[int, Tensor]:
        """Return what encoders make of the input; idle ones only tell the gates what they would have given."""
        encoded: dict[int, Tensor] = {}
        for number in range(self.layers[0]):
            if (0, number) in active:
                encoded[number] = self._at((0, number))(x)
            elif self.gating is not None:
                with torch.no_grad():
                    encoded[number] = self._at((0, number))(x)
        return encoded

    def _at(self, place: Place) -> nn.Module:
        return self.get_submodule(self.block_name(place))

    def _block(self, place: Place) -> nn.Module:
        layer, layout = place[0], self.layout
        if layer == 0:
            return self.new_encoder(layout.features)
        inputs = layout.features if layer == 1 else layout.hidden
        if layer == len(self.layers) - 1:
            return nn.Linear(inputs, self.outputs)
        return nn.Sequential(
            OrderedDict(
                linear=nn.Linear(inputs, layout.hidden), relu=nn.ReLU(), dropout=nn.Dropout(layout.dropout)
            )
        )


def _he(layer: nn.Module) -> None:
    """Draw a layer's weights so that signals keep their size through ReLUs (He et al. 2015)."""
    if isinstance(layer, nn.Linear | nn.Conv2d):
        nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
        if layer.bias is not None:
            nn.init.zeros_(layer.bias)


def _mean(outputs: dict[int, Tensor], gates: Tensor) -> Tensor:
    """Return the mean of outputs, weighted by the gates of their links."""
    weights = {number: gates[number] for number in outputs}
    total = torch.stack([outputs[number] * weight for number, weight in weights.items()]).sum(0)
    return total / torch.stack(list(weights.values())).sum()


@part
class ModulePoolLayout(Architecture):
    """Encoders, layers of FC blocks with ReLU and dropout, linear heads: FedMN's pool (Wang et al. 2022).

    `layers` has the number of encoders first, of heads last. Sizes are those of the published experiment. The
    paper's set-ups: for CIFAR MobileNetV2 to 512 features; for (F)EMNIST `cnn` with `same = false` and hidden
    2048; for its Figure 2 `mlp` without hidden layers and 256 features.
    """

    name: ClassVar[str] = "module_pool"
    summary: ClassVar[str] = "FedMN's pool: encoders, layers of FC blocks and heads, linked by gates"

    layers: Annotated[tuple[Size, ...], Field(min_length=2)] = (2, 2, 2)
    """How many encoders, blocks of each middle layer, and heads there are."""
    encoder: EncoderChoice = Field(default_factory=lambda: MLP(()))
    """Network that encoders are made of: mlp, cnn, mobilenet_v2, modular_lstm, char_lstm, char_transformer."""
    features: Size = 512
    """What an encoder gives."""
    hidden: Size = 256
    """What a middle block gives."""
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.5
    """In the middle blocks."""
    init: Literal["torch", "he"] = "torch"
    """First weights: as torch draws them (the paper is silent), with which signals fade from layer to layer and deep
    pools need some hundred steps to begin to learn; or He's, with which they do at once."""

    @property
    def bases(self) -> tuple[str, ...]:
        """Weights of a pool, or of what its encoders are."""
        return (self.name, self.encoder.name)

    def build(self, shape: Shape, outputs: int) -> nn.Module:
        """Return the pool with all gates open."""
        return ModulePool(self, shape, outputs)

    def encode(self, shape: Shape, size: int, outputs: int) -> nn.Module:
        """Return an encoder with as many features; where it embeds characters, they are as many as outputs."""
        encoder = self.encoder
        if isinstance(encoder, (CharLSTM, CharTransformer)) and not encoder.alphabet:
            encoder = dataclasses.replace(encoder, alphabet=outputs)
        return nn.Sequential(OrderedDict(network=encoder.build(shape, size), relu=nn.ReLU()))


def pool_of(model: nn.Module, wanted_by: str) -> ModulePool:
    """Return the model as a module pool, or say what is wrong."""
    if isinstance(model, ModulePool):
        return model
    raise SettingsError(
        f'{wanted_by} assembles networks from a module pool, not from {type(model).__name__}: set model = "module_pool"'
    )


OUTPUT = "output"
"""Where the links of the heads lead."""


class Assembled(nn.Module):
    """The blocks that are used, and what each one's input is: the mean over its open links."""

    def __init__(self, blocks: Mapping[str, nn.Module], links: Mapping[str, Mapping[str, float]]) -> None:
        super().__init__()
        for name, block in blocks.items():
            self.add_module(name, block)
        self.order = list(blocks)
        """From the encoders to the heads."""
        self.links = links
        """The gates of the links that lead to a block, by where they begin; encoders have none."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the mean of the heads."""
        values: dict[str, Tensor] = {}
        for name in self.order:
            values[name] = self.get_submodule(name)(self._mean(values, name) if name in self.links else x)
        return self._mean(values, OUTPUT)

    def _mean(self, values: Mapping[str, Tensor], name: str) -> Tensor:
        links = self.links[name]
        total = torch.stack([values[start] * gate for start, gate in links.items()]).sum(0)
        return total / sum(links.values())
