"""From raw readings to a model's inputs, inside of the exported graph."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from intarsia.core import DataError, chance
from intarsia.data import Scaling
from intarsia.data.preparation import UNKNOWN, Pictures, Preparation, Prepared
from intarsia.data.recorded import Form

MADE = 64
"""How many inputs are made to try a model on."""
Kind = Literal["table", "images", "array"]


class Columns(nn.Module):
    """Raw columns, float64: missing values filled, numbers scaled, words as categories; then float32."""

    index: Tensor
    fill: Tensor
    offset: Tensor
    scale: Tensor
    word: Tensor
    is_word: Tensor

    def __init__(self, preparation: Preparation) -> None:
        super().__init__()
        columns = preparation.columns
        rows = [
            (at, float(word), column.kind == "words", column.offset, column.scale)
            for at, column in enumerate(columns)
            for word in range(len(column.words) if column.kind == "words" else 1)
        ]
        index, word, is_word, offset, scale = zip(*rows, strict=True)
        self.register_buffer("index", torch.tensor(index))
        self.register_buffer("word", torch.tensor(word, dtype=torch.float64))
        self.register_buffer("is_word", torch.tensor(is_word))
        self.register_buffer("offset", torch.tensor(offset, dtype=torch.float64))
        self.register_buffer("scale", torch.tensor(scale, dtype=torch.float64))
        fill = [np.nan if column.fill is None else column.fill for column in columns]
        self.register_buffer("fill", torch.tensor(fill, dtype=torch.float64))

    def forward(self, raw: Tensor) -> Tensor:
        """Return the model's inputs."""
        filled = torch.where(torch.isnan(raw), self.fill, raw).index_select(-1, self.index)
        numbers = (filled - self.offset) / self.scale
        return torch.where(self.is_word, (filled == self.word).double(), numbers).float()


class Scaled(nn.Module):
    """Stored numbers, mostly bytes, to float32, channel by channel: (x * factor - mean) / std."""

    mean: Tensor
    std: Tensor

    def __init__(self, scaling: Scaling, dims: int) -> None:
        super().__init__()
        self.factor = scaling.factor
        channels = (-1, 1, 1) if dims == 3 else (-1,)
        self.register_buffer("mean", torch.tensor(scaling.mean).view(channels))
        self.register_buffer("std", torch.tensor(scaling.std).view(channels))

    def forward(self, raw: Tensor) -> Tensor:
        """Return the model's inputs."""
        return (raw.float() * self.factor - self.mean) / self.std


@dataclass(frozen=True)
class Inputs:
    """What goes into an exported model: raw columns of a table, bytes of images, or arrays as they are."""

    form: Form
    preparation: Preparation | None = None

    @classmethod
    def of(cls, form: Form, prepared: Prepared | None) -> Inputs:
        """Return the inputs of a client's model."""
        return cls(form, prepared if isinstance(prepared, Preparation) else None)

    @property
    def kind(self) -> Kind:
        """What is read for the model."""
        if self.preparation is not None:
            return "table"
        return "images" if self.pictures is not None else "array"

    @property
    def pictures(self) -> Pictures | None:
        """How image files become these inputs, if they do."""
        form = self.form
        if form.scaling is None or form.dtype != "uint8" or len(form.shape) != 3:
            return None
        channels, height, width = form.shape
        return Pictures(height, width, channels, form.scaling) if channels in (1, 3) else None

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one raw sample."""
        if self.preparation is None:
            return self.form.shape
        return (*self.form.shape[:-1], len(self.preparation.columns))

    @property
    def dtype(self) -> torch.dtype:
        """The raw samples' type of number."""
        return torch.float64 if self.preparation is not None else self.form.kind

    def module(self) -> nn.Module:
        """Return the part of the graph that prepares raw samples."""
        if self.preparation is not None:
            return Columns(self.preparation)
        scaling = self.form.scaling
        return nn.Identity() if scaling is None else Scaled(scaling, len(self.form.shape))

    def prepared(self, raw: Tensor) -> Tensor:
        """Return what the model was trained on, computed as training does: the graph is compared with it."""
        if self.preparation is not None:
            return torch.from_numpy(self.preparation.apply(raw.numpy()))
        if self.form.scaling is None:
            return raw.clone()
        if raw.dim() != 4:
            return self.form.scaling.apply(raw.clone())
        return self.form.scaling.apply(raw.permute(0, 2, 3, 1).contiguous()).permute(0, 3, 1, 2).contiguous()

    def raw(self, stored: Tensor) -> Tensor:
        """Return raw samples of which a client's stored ones can be made."""
        if self.preparation is None:
            return stored.contiguous()
        x, parts, at = stored.double(), [], 0
        for column in self.preparation.columns:
            own = x[..., at : at + len(column.inputs)]
            at += len(column.inputs)
            if column.kind == "words":
                known = own.amax(-1) > 0
                parts.append(torch.where(known, own.argmax(-1).double(), UNKNOWN))
            else:
                parts.append(own[..., 0] * column.scale + column.offset)
        return torch.stack(parts, -1)

    def made(self, network: nn.Module, client: str) -> Tensor:
        """Return raw samples by chance, some with missing values where there is a rule for them."""
        draw = chance.generator(0, "export", 0, client)
        size = (MADE, *self.shape)
        if self.preparation is not None:
            return self._made_columns(size, draw)
        if self.dtype.is_floating_point:
            return torch.randn(size, generator=draw, dtype=self.dtype)
        tables = [m.num_embeddings for m in network.modules() if isinstance(m, nn.Embedding)]
        most = min(tables, default=256 if self.dtype == torch.uint8 else 2)
        return torch.randint(0, most, size, generator=draw).to(self.dtype)

    def _made_columns(self, size: tuple[int, ...], draw: torch.Generator) -> Tensor:
        assert self.preparation is not None
        raw = torch.randn(size, generator=draw, dtype=torch.float64)
        gaps = torch.rand(size, generator=draw) < 0.1
        for at, column in enumerate(self.preparation.columns):
            if column.kind == "words":
                drawn = torch.randint(-1, max(1, len(column.words)), size[:-1], generator=draw)
                raw[..., at] = drawn.double()
            else:
                raw[..., at] = raw[..., at] * column.scale + column.offset
            if column.fill is not None:
                raw[..., at] = torch.where(gaps[..., at], torch.nan, raw[..., at])
        return raw

    def checked(self, raw: NDArray[Any], where: str) -> Tensor:
        """Return an array of raw samples as the graph takes it; one that does not fit is refused."""
        if raw.dtype.kind not in "biuf" or tuple(raw.shape[1:]) != self.shape:
            raise DataError(
                f"{where}: the model takes numbers of shape [rows, {', '.join(map(str, self.shape))}], not "
                f"{raw.dtype} {list(raw.shape)}"
            )
        kind = self.dtype
        if raw.dtype.kind == "f" and not kind.is_floating_point:
            raise DataError(f"{where}: the model takes whole numbers ({kind}), not {raw.dtype}")
        return torch.from_numpy(np.ascontiguousarray(raw)).to(kind)

    def to_json(self) -> dict[str, Any]:
        """Return all that is to be known of the inputs, as plain values."""
        about: dict[str, Any] = {
            "kind": self.kind,
            "dtype": str(self.dtype).removeprefix("torch."),
            "shape": ["batch", *self.shape],
            "form": self.form.to_json(),
        }
        if self.preparation is not None:
            about["columns"] = [column.name for column in self.preparation.columns]
            about["preparation"] = self.preparation.to_json()
        return about

    @classmethod
    def from_json(cls, about: dict[str, Any]) -> Inputs:
        """Read what `to_json` gave."""
        prepared = about.get("preparation")
        return cls(Form.from_json(about["form"]), Preparation.from_json(prepared) if prepared else None)
