"""Clients of little capacity hold leading slices of one network."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from intarsia.blocks import Block, Expected, Layout, Merge, Sums, Values
from intarsia.blocks.expected import Kind
from intarsia.blocks.plain import shown
from intarsia.blocks.sums import SAMPLES
from intarsia.core import Refused, chance, part
from intarsia.data import ClientInfo
from intarsia.methods.asked import Asked, of_training
from intarsia.methods.base import EVALUATE, OWN, Exchange, Method, Round, Sharing, report
from intarsia.methods.server import Server
from intarsia.models import (
    add_mask,
    add_scalers,
    fit_statistics,
    hidden_layers,
    last_weights,
    make_static,
    set_mask,
    set_ratios,
)
from intarsia.training import LocalClient

RATIOS = "ratios"
"""The value that tells a client, layer by layer, which share of the units of the widest it holds."""
ROWS = "rows"
"""The value that says which rows of a tensor an update counts in."""
Width = Annotated[float, Field(gt=0, le=1)]


@part
class SliceMean(Merge):
    """Per entry, the mean over those who hold it (HeteroFL, Diao et al. 2021, eq. 3-4).

    A holder has the leading slice of every tensor along every dimension. An update may say of a tensor which rows
    of it count (values `rows`, by the tensor's name): its others are as if it did not hold them. Entries that nobody
    trained keep their value.
    """

    name: ClassVar[str] = "slices"
    partial: ClassVar[bool] = True
    essential: ClassVar[bool] = True

    def view(self, block: Block, layout: Layout) -> Block:
        """Return the leading part of every tensor that a layout asks for."""
        if block.layout == layout:
            return block
        tensors = {
            entry.name: block.tensors[entry.name][tuple(slice(0, s) for s in entry.shape)].clone()
            for entry in layout
        }
        return Block(tensors, block.buffers)

    def common(self, one: Block, other: Block) -> Block | None:
        """Return the one that covers the other."""
        return one if _covers(one, other) else other if _covers(other, one) else None

    def sum_bytes(self, present: Block) -> int:
        """Return the bytes of the sums and of the samples beside them."""
        counts = sum(8 * t.numel() for t in present.tensors.values() if t.is_floating_point())
        return Merge.sum_bytes(self, present) + counts

    def open(self, present: Block, planned: int) -> Sums:
        """Start sums of values and, beside each, sums of the samples behind every entry."""
        sums = Merge.open(self, present, planned)
        for name in sums.grids:
            sums.tensors[name + SAMPLES] = torch.zeros(present.tensors[name].shape, dtype=torch.int64)
        return sums

    def add(
        self, sums: Sums, present: Block, update: Block, samples: int, values: Mapping[str, object]
    ) -> None:
        """Add one holder's slice."""
        rows = _rows(values)
        for name, tensor in update.tensors.items():
            corner = tuple(slice(0, size) for size in tensor.shape)
            part_sums = Sums({name: sums.tensors[name][corner]}, sums.grids, sums.planned)
            now, counts = present.tensors[name][corner], _counting(tensor, rows.get(name))
            value = torch.where(counts, tensor, now) if name in rows else tensor
            self._add_tensor(part_sums, name, now, value, samples / sums.planned)
            if name in sums.grids:
                sums.tensors[name + SAMPLES][corner].add_(samples * counts)
        sums.samples += samples

    def finish(self, sums: Sums, present: Block) -> Block:
        """Divide every entry by the share of those who hold it."""
        tensors = {}
        for name, now in present.tensors.items():
            if name in sums.grids:
                held = sums.tensors[name + SAMPLES].clamp(min=1).double().div_(sums.planned)
                change = sums.tensors[name].double().mul(sums.grids[name].step).div_(held)
                tensors[name] = now.double().add(change).to(now.dtype)
            else:
                tensors[name] = sums.tensors[name]
        return Block(tensors, present.buffers)


@part
class HeteroFL(Method):
    """One network; each client holds the leading units of every hidden layer that its capacity allows.

    Diao, Ding and Tarokh 2021, "HeteroFL: computation and communication efficient federated learning for
    heterogeneous clients". Every entry is averaged over those who hold it; one that nobody holds keeps its value
    (merge `slices`). What a client's hidden layers give is divided by the share of units that it holds (`scaler`),
    when it trains and when it predicts with its slice: the whole network, with all shares 1, has nothing to divide.
    Batch norms go by the batch while they train (`static_norms`). The outputs for labels that a client does not have
    are set to zero (`masked`, with cross entropy), and the last layer's rows of these labels are left out of the mean
    (`held_rows`). The paper's widths are 1, 1/2, 1/4, 1/8 and 1/16; models of one's own widths can be given by name as
    well ([models.NAME]).
    Ours: the share is told by the shapes, layer by layer, so it is that of the units held (3 of 10, where the authors
    divide by a rate of 1/4); gradients are not clipped (the authors clip their norm to 1); means are weighted by
    samples; who holds what is fixed (the paper also draws it anew in every round); masked labels stay masked when a
    client predicts; the statistics that batch norms need for evaluation are the client's own, taken on its training
    data with its own slice, scaled as it predicts, and never leave it: the paper's server asks its clients for them
    when training is over, for the one network that it evaluates.
    """

    name: ClassVar[str] = "heterofl"
    title: ClassVar[str] = "HeteroFL"
    gives_away: ClassVar[str | None] = "which labels a client has, and who holds which slice"

    sharing: Sharing = Field(default_factory=lambda: Sharing(norms="statistics"))
    merge: Merge = Field(default_factory=SliceMean)
    widths: Annotated[tuple[Width, ...], Field(min_length=1)] = (1.0, 0.5, 0.25, 0.125, 0.0625)
    """The shares of the model's width that there are."""
    by: Literal["capacity", "lot"] = "capacity"
    """Which of them a client holds: the largest up to its `capacity` (or else the smallest), or one drawn by lot."""
    lot: Annotated[int, Field(ge=0)] = 0
    """Which draw."""
    scaler: bool = True
    """Whether hidden layers of narrow models are scaled up by what is missing."""
    static_norms: bool = True
    """Batch norms without running statistics in training; else those run on, at home (`sharing.norms`)."""
    masked: bool = True
    """Whether outputs of labels that a client does not have are zero."""
    held_rows: bool = True
    """Whether the last layer's rows of labels that a client does not have are left out of the mean, if `masked`. The
    client then tells the server which labels it has; else these rows come back as they were sent, and count."""

    def width(self, client: ClientInfo) -> float:
        """Return the share of every hidden layer's units that a client holds."""
        if self.by == "lot":
            return self.widths[chance.key(self.lot, "width", client.name) % len(self.widths)]
        return max((w for w in self.widths if w <= client.capacity), default=min(self.widths))

    def doubt(self, server: Server) -> str:
        """Return whether nobody holds less than the whole network."""
        if any(ratios(server, client) for client in server.clients):
            return super().doubt(server)
        return (
            "method 'heterofl': every client holds the whole network: give clients capacities below 1 (the attribute "
            'capacity), or draw widths by lot (method.by = "lot")'
        )

    def prepare(self, model: nn.Module) -> nn.Module:
        """Add the scalers and make the norms static."""
        if self.scaler:
            add_scalers(model)
        if self.static_norms:
            make_static(model)
        if self.masked:
            add_mask(model)
        return model

    def round(self, server: Server) -> Round:
        """Train all slices; tell each client its share of every layer."""
        replies = yield Exchange("train", values=lambda client: self._values(server, client))
        self.sharing.regroup(server, replies)

    def local_step(self, step: str, client: LocalClient) -> Values:
        """Train the slice."""
        self._fit(client)
        return {**report(client.train(self.objective)), **self._rows(client)}

    def expects(self, step: str, asked: Asked) -> Expected:
        """Return what a client reports of its training, and the rows of the last layer that count."""
        return of_training(asked, **{ROWS: _RowNumbers(asked)})

    def own(self, server: Server) -> Exchange:
        """Return the exchange of an evaluation: a client that is new to the federation may train in it."""
        return Exchange(EVALUATE, values=lambda client: self._values(server, client))

    def own_model(self, client: LocalClient) -> Iterator[str]:
        """Take the statistics of the norms on the client's training data."""
        self._fit(client)
        if self.static_norms:
            fit_statistics(client.model, (x for x, _ in client.in_order()))
        yield OWN

    def _values(self, server: Server, client: ClientInfo) -> Values:
        return {RATIOS: ratios(server, client.name)} if self.scaler else {}

    def _fit(self, client: LocalClient) -> None:
        """Set the model's scalers and its mask for this client: it may have served another."""
        if self.scaler:
            set_ratios(client.model, client.values[RATIOS])
        if self.masked:
            set_mask(client.model, _labels(client))

    def _rows(self, client: LocalClient) -> Values:
        """Return which rows of the last layer count, for the merge."""
        labels = _labels(client)
        if labels is None or not (self.masked and self.held_rows):
            return {}
        return {ROWS: {name: labels.tolist() for name in last_weights(client.model)}}


@dataclass(frozen=True)
class _RowNumbers(Kind):
    """Which rows of its last layer a client counts in, by tensor."""

    asked: Asked

    def fault(self, value: Any) -> str:
        """Return what is wrong with row numbers."""
        if not isinstance(value, dict) or not value.keys() <= set(last_weights(self.asked.model)):
            return f"{shown(value)}: row numbers of the last layer were expected"
        for own in value.values():
            rows = range(self.asked.outputs)
            plain = isinstance(own, list) and all(type(row) is int and row in rows for row in own)
            if not plain or len(set(own)) < len(own):
                return f"{shown(own)}: different numbers from 0 to {rows[-1]} were expected"
        return ""


def _labels(client: LocalClient) -> Tensor | None:
    """Return the labels that a client has; none where it does not predict labels."""
    return torch.unique(client.data["train"].y) if client.loss.name == "cross_entropy" else None


def ratios(server: Server, client: str) -> dict[str, float]:
    """Return a client's share of the units of every hidden layer, as the server holds it, where it is not all."""
    addresses = [server.address(block, client) for block in server.model_of(client).blocks]
    shapes = {n: s for a in addresses if not a.private for n, s in server.pool.get(a).shapes.items()}
    found = {}
    for name, layer in hidden_layers(server.model_of(client).module).items():
        weight = f"{name}.weight"
        units = layer.get_parameter("weight").shape[0]
        if weight in shapes and units != shapes[weight][0]:
            found[name] = units / shapes[weight][0]
    return found


def _covers(large: Block, small: Block) -> bool:
    shapes = large.shapes
    return shapes.keys() == small.shapes.keys() and all(
        len(shapes[n]) == len(s) and all(a >= b for a, b in zip(shapes[n], s, strict=True))
        for n, s in small.shapes.items()
    )


def _rows(values: Mapping[str, object]) -> dict[str, list[int]]:
    """Return the rows that an update counts in, by tensor; all of a tensor that is not named."""
    rows = values.get(ROWS, {})
    if not isinstance(rows, dict) or not all(
        isinstance(own, list) and all(type(row) is int and row >= 0 for row in own) for own in rows.values()
    ):
        raise Refused(
            f"the update says {str(rows)[:80]} of the rows it counts in: lists of row numbers were expected"
        )
    return rows


def _counting(tensor: Tensor, rows: list[int] | None) -> Tensor:
    """Return which rows of a tensor count, so that it can be laid over the tensor; a number that it lacks is none."""
    if rows is None or not tensor.dim():
        return torch.ones((), dtype=torch.bool)
    counts = torch.zeros(len(tensor), dtype=torch.bool)
    counts[[row for row in rows if row < len(tensor)]] = True
    return counts.view(-1, *[1] * (tensor.dim() - 1))
