"""Populations of images, dealt by a partition."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from intarsia.core import DataError, part
from intarsia.data.datasets import get
from intarsia.data.dealing import Dealt, Rows, Splits, Table
from intarsia.data.own import make_client
from intarsia.data.partitions.cohorts import PermutedLabels, ShiftedInputs
from intarsia.data.partitions.noise import Noise
from intarsia.data.partitions.pachinko import Pachinko
from intarsia.data.places import Places
from intarsia.data.population import Client, Examples, Population, Scaling
from intarsia.data.published.images import COARSE_OF_FINE
from intarsia.data.raw import RawData, renumber

LOOKED_AT = 5000
"""How many images the mean and deviation of the channels are taken from."""


@part
class Images(Dealt):
    """A data set of images among clients; kept as bytes, scaled batch by batch."""

    name: ClassVar[str] = "images"
    summary: ClassVar[str] = "a data set of images, dealt by a partition"

    size: Annotated[int, Field(ge=0)] = 0
    """Height and width to resize to (0: as it is)."""
    channels: Literal[0, 1, 3] = 0
    """Channels to convert to (0: as it is)."""
    standardise: bool = True
    """Whether channels are centred and scaled by their mean and deviation; else values lie in 0 ... 1."""

    def load(self, seed: int, places: Places) -> Population:
        """Return the population."""
        if isinstance(self.partition, Pachinko) and not self.partition.coarse_of_fine:
            return replace(self, partition=self._with_table(self.partition)).load(seed, places)
        raw = self._raw(places)
        y = renumber(raw.labels, self.labels, f"data set '{self.dataset}'")[raw.y] if self.labels else raw.y
        labels = self.labels or raw.labels
        parts = np.where(raw.train, "train", "test")
        splits, public = self.deal(Table(y, parts, raw.natural, raw.overlapping), seed)
        scaling = self._scaling(raw, np.concatenate([own["train"] for own in splits]))
        clients = [self._client(i, own, raw, y, scaling, seed, len(labels)) for i, own in enumerate(splits)]
        rest = (
            Examples(self._pixels(raw.x, public), torch.from_numpy(y[public]), scaling)
            if len(public)
            else None
        )
        rows = {
            c.info.name: {s: r.tolist() for s, r in own.items()}
            for c, own in zip(clients, splits, strict=True)
        }
        return Population(
            {c.info.name: c for c in clients}, len(labels), labels=labels, public=rest, rows=rows
        )

    def _with_table(self, partition: Pachinko) -> Pachinko:
        if self.dataset != "cifar100" or self.labels:
            raise DataError(
                "population.partition.coarse_of_fine: only all of CIFAR-100's labels have a table of their "
                "own; give the coarse label of each label"
            )
        return replace(partition, coarse_of_fine=COARSE_OF_FINE)

    def _raw(self, places: Places) -> RawData:
        raw = get(self.dataset).locate(places).load()
        if not isinstance(raw, RawData):
            raise DataError(f"data set '{self.dataset}' has no images: use population 'motion' or 'roles'")
        return raw

    def _client(
        self, i: int, own: Splits, raw: RawData, y: Rows, scaling: Scaling, seed: int, classes: int
    ) -> Client:
        data: dict[str, tuple[Any, Any]] = {}
        for split, rows in own.items():
            x, labels = self._pixels(raw.x, rows), y[rows]
            if isinstance(self.partition, ShiftedInputs):
                seen = self.partition.shifted(x.permute(0, 2, 3, 1).numpy(), i)
                x = torch.from_numpy(np.ascontiguousarray(seen)).permute(0, 3, 1, 2)
            if isinstance(self.partition, PermutedLabels):
                labels = self.partition.relabelled(labels, i, classes, seed)
            if isinstance(self.partition, Noise):
                x = self._noisy(self.partition, x, i, seed, split)
            data[split] = (x, labels)
        if isinstance(self.partition, Noise):
            scaling = Scaling(1.0, scaling.mean, scaling.std)
        client = make_client(
            self.client_name(i), data, "classification", scaling, **self.attributes(i, classes, seed)
        )
        if isinstance(self.partition, Noise) and self.partition.redrawn:
            anew = replace(client.data["train"], noise=self.partition.noise_scale(i, self.clients))
            client = replace(client, data={**client.data, "train": anew})
        return client

    def _noisy(self, partition: Noise, x: Tensor, i: int, seed: int, split: str) -> Tensor:
        values = x.permute(0, 2, 3, 1).float().div(255).numpy()
        if partition.redrawn and split == "train":
            return torch.from_numpy(values).permute(0, 3, 1, 2)
        return torch.from_numpy(partition.add_noise(values, i, self.clients, seed, split)).permute(0, 3, 1, 2)

    def _pixels(self, x: NDArray[Any], rows: Rows) -> Tensor:
        """Return these images as bytes, (n, channels, height, width), with the channels last in memory."""
        images = torch.from_numpy(np.ascontiguousarray(x[rows])).permute(0, 3, 1, 2)
        if self.channels == 3 and images.shape[1] == 1:
            images = images.expand(-1, 3, -1, -1)
        elif self.channels == 1 and images.shape[1] == 3:
            grey = torch.tensor([0.299, 0.587, 0.114]).view(1, 3, 1, 1)
            images = (images.float() * grey).sum(1, keepdim=True).round().to(torch.uint8)
        if self.size and self.size != images.shape[-1] and len(images):
            images = _resized(images, self.size)
        return images.contiguous(memory_format=torch.channels_last)

    def _scaling(self, raw: RawData, train: Rows) -> Scaling:
        """Return mean and deviation of the channels, from counts of bytes: exact with any number of threads."""
        some = np.sort(train)[:: max(1, len(train) // LOOKED_AT)]
        pixels = self._pixels(raw.x, some)
        if not self.standardise:
            return Scaling(1 / 255, (0.0,) * pixels.shape[1], (1.0,) * pixels.shape[1])
        mean, std = [], []
        for channel in pixels.numpy().transpose(1, 0, 2, 3):
            counts = np.bincount(channel.ravel(), minlength=256)
            share, value = counts / counts.sum(), np.arange(256) / 255
            centre = float((share * value).sum())
            mean.append(centre)
            std.append(max(float((share * (value - centre) ** 2).sum()) ** 0.5, 1e-3))
        return Scaling(1 / 255, tuple(mean), tuple(std))


def _resized(images: Tensor, size: int) -> Tensor:
    """Resize in pieces, so that the floats of a large data set need no room at once."""
    pieces = [
        torch.nn.functional.interpolate(piece.float(), size=(size, size), mode="bilinear", antialias=True)
        .round()
        .clamp(0, 255)
        .to(torch.uint8)
        for piece in torch.split(images, 1000)
    ]
    return torch.cat(pieces)
