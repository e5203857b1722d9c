"""Small networks for text: the next character of a sequence."""

from __future__ import annotations

from collections import OrderedDict
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn

from intarsia.core import SettingsError, part
from intarsia.models.architectures.chains import Chain, Size
from intarsia.models.architectures.modular import LastStep
from intarsia.models.spec import Architecture, Shape

Alphabet = Annotated[int, Field(ge=0)]
"""How many characters there are (0: as many as outputs)."""


def _check_text(shape: Shape, model: str) -> None:
    if len(shape) != 1:
        raise SettingsError(f"model '{model}' needs sequences of characters, not {list(shape)}")


@part
class CharLSTM(Architecture):
    """Characters embedded, an LSTM, and a head over the alphabet (after McMahan et al. 2017; one layer here)."""

    name: ClassVar[str] = "char_lstm"
    summary: ClassVar[str] = "embedding, LSTM and head: next-character prediction"

    embedding: Size = 8
    """Numbers that stand for a character."""
    units: Size = 64
    """Units of the LSTM."""
    alphabet: Alphabet = 0
    """How many characters can be read (0: as many as can be predicted)."""

    def build(self, shape: Shape, outputs: int) -> nn.Module:
        """Return the layers in order; characters are numbered as the outputs are."""
        _check_text(shape, self.name)
        layers: Chain = OrderedDict(embedding=nn.Embedding(self.alphabet or outputs, self.embedding))
        layers["lstm"] = LastStep(self.embedding, self.units, batch_first=True)
        layers["head"] = nn.Linear(self.units, outputs)
        return nn.Sequential(layers)


class Positions(nn.Module):
    """Adds to every character a learned vector of its place."""

    def __init__(self, length: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(length, width))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw small vectors."""
        nn.init.normal_(self.weight, std=0.02)

    def forward(self, x: Tensor) -> Tensor:
        """Return the characters with their places."""
        return x + self.weight[: x.shape[1]]


class MeanOverSteps(nn.Module):
    """The mean over a sequence."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the mean over the steps."""
        return x.mean(1)


@part
class CharTransformer(Architecture):
    """Characters and places embedded, attention layers over the whole sequence, their mean, and a head."""

    name: ClassVar[str] = "char_transformer"
    summary: ClassVar[str] = "embedding, attention layers and head: next-character prediction"

    width: Size = 64
    """Numbers that stand for a character, in every layer."""
    heads: Size = 4
    """Attention heads."""
    depth: Size = 2
    """How many attention layers."""
    alphabet: Alphabet = 0
    """How many characters can be read (0: as many as can be predicted)."""

    def build(self, shape: Shape, outputs: int) -> nn.Module:
        """Return the layers in order; characters are numbered as the outputs are."""
        _check_text(shape, self.name)
        if self.width % self.heads:
            raise SettingsError(
                f"model '{self.name}': width {self.width} is no multiple of heads {self.heads}: change one"
            )
        layers: Chain = OrderedDict(
            embedding=nn.Embedding(self.alphabet or outputs, self.width),
            positions=Positions(shape[0], self.width),
        )
        for number in range(1, self.depth + 1):
            layers[f"attention{number}"] = nn.TransformerEncoderLayer(
                self.width, self.heads, 2 * self.width, dropout=0.0, batch_first=True
            )
        layers["mean"] = MeanOverSteps()
        layers["head"] = nn.Linear(self.width, outputs)
        return nn.Sequential(layers)
