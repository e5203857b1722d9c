"""A small network for text: the next character of a sequence."""

from __future__ import annotations

from collections import OrderedDict
from typing import ClassVar

from torch import nn

from intarsia.blocks import SettingsError, part
from intarsia.models.modular import LastStep
from intarsia.models.simple import Size
from intarsia.models.spec import Architecture, Shape


@part
class CharLSTM(Architecture):
    """Characters embedded, an LSTM, and a head over the alphabet (after McMahan et al. 2017; one layer here)."""

    name: ClassVar[str] = "char_lstm"
    summary: ClassVar[str] = "embedding, LSTM and head: next-character prediction"

    embedding: Size = 8
    units: Size = 64

    def build(self, shape: Shape, outputs: int) -> nn.Module:
        """Return the layers in order; characters are numbered as the outputs are."""
        if len(shape) != 1:
            raise SettingsError(f"model 'char_lstm' needs sequences of characters, not {list(shape)}")
        layers: OrderedDict[str, nn.Module] = OrderedDict(embedding=nn.Embedding(outputs, self.embedding))
        layers["lstm"] = LastStep(self.embedding, self.units, batch_first=True)
        layers["head"] = nn.Linear(self.units, outputs)
        return nn.Sequential(layers)
