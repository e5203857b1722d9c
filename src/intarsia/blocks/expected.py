"""What the values and tensors of an answer may be: declared by the method that asked, checked in one place."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from intarsia.blocks.block import Block, check_block
from intarsia.blocks.plain import check_plain, shown
from intarsia.blocks.wire import Update
from intarsia.core import Refused, WireError

MODERATE = 2.0**20
"""The largest score or representation of a network that has not diverged."""
SINGLE = float(torch.finfo(torch.float32).max)


class Kind(ABC):
    """What one value may be."""

    @abstractmethod
    def fault(self, value: Any) -> str:
        """Return what is wrong with a value, as the end of a sentence (empty: nothing)."""


@dataclass(frozen=True)
class Number(Kind):
    """A number between two bounds."""

    low: float
    high: float
    whole: bool = False
    endless: bool = False
    """Whether NaN and infinities pass too: a loss may be one."""

    def fault(self, value: Any) -> str:
        """Return what is wrong with a number."""
        kinds = int if self.whole else (int, float)
        if isinstance(value, bool) or not isinstance(value, kinds):
            return f"{shown(value)}, which is no {'whole ' * self.whole}number"
        if self.endless and isinstance(value, float) and not math.isfinite(value):
            return ""
        if not self.low <= value <= self.high:
            return f"{shown(value)}, which is not between {self.low:g} and {self.high:g}"
        return ""


@dataclass(frozen=True)
class NumberList(Kind):
    """So many numbers."""

    count: int
    each: Number

    def fault(self, value: Any) -> str:
        """Return what is wrong with a list."""
        if not isinstance(value, list) or len(value) != self.count:
            return f"{shown(value)}: {self.count} finite numbers were expected"
        wrong = next((fault for fault in map(self.each.fault, value) if fault), "")
        return f"not {self.count} finite numbers: one is {wrong}" if wrong else ""


@dataclass(frozen=True)
class Table:
    """A tensor of a type and a shape (-1: any size of at least 1), with values between two bounds."""

    shape: tuple[int, ...]
    low: float = -MODERATE
    high: float = MODERATE
    dtype: torch.dtype = torch.float32

    def fault(self, tensor: Tensor) -> str:
        """Return what is wrong with a tensor."""
        sizes = zip(tensor.shape, self.shape, strict=False)
        fits = tensor.dim() == len(self.shape) and all(n == m or (m == -1 and n > 0) for n, m in sizes)
        if not fits or tensor.dtype != self.dtype:
            return f"is {tensor.dtype}{list(tensor.shape)}, expected {self.dtype}{list(self.shape)}"
        low, high = (float(end) for end in torch.aminmax(tensor)) if tensor.numel() else (self.low, self.low)
        if not (self.low <= low and high <= self.high):  # a NaN is not between bounds either
            return f"has values from {low:g} to {high:g}, possible are {self.low:g} to {self.high:g}"
        return ""


@dataclass(frozen=True)
class Expected:
    """All that an answer may hold beside its blocks."""

    values: Mapping[str, Kind] = field(default_factory=dict)
    """Values that must be there."""
    perhaps: Mapping[str, Kind] = field(default_factory=dict)
    """Values that may be there."""
    tensors: Mapping[str, Mapping[str, Table]] = field(default_factory=dict)
    """Named tensors that must be there."""
    others: bool = False
    """Whether more may be there: any plain values and finite tensors, of which nothing is known."""

    @property
    def nbytes(self) -> int:
        """The most bytes that the named tensors have; of sizes that are not known, none."""
        tables = [table for own in self.tensors.values() for table in own.values()]
        return sum(math.prod(max(n, 0) for n in t.shape) * t.dtype.itemsize for t in tables)

    def check(self, update: Update) -> None:
        """Refuse an answer that holds anything else."""
        known = {**self.values, **self.perhaps}
        _check_names("value", update.values, self.values, known, self.others)
        _check_names("tensors", update.tensors, self.tensors, self.tensors, self.others)
        for name, value in update.values.items():
            fault = known[name].fault(value) if name in known else _unknown(name, value)
            if fault:
                raise Refused(f"the update reports {name} = {fault}")
        for name, block in update.tensors.items():
            if name in self.tensors:
                _check_tensors(name, block, self.tensors[name])
            else:
                check_block(block, block.layout, name)


def _check_names(
    what: str, got: Mapping[str, Any], needed: Mapping[str, Any], known: Mapping[str, Any], others: bool
) -> None:
    missing = needed.keys() - got.keys()
    if missing:
        raise Refused(f"the update has no {what} '{min(missing)}'")
    more = got.keys() - known.keys()
    if more and not others:
        raise Refused(
            f"the update has {what} {shown(min(more))}, which the method does not expect (see Method.expects)"
        )


def _unknown(name: str, value: Any) -> str:
    try:
        check_plain(value, "it")
    except WireError as error:
        return str(error)
    return ""


def _check_tensors(name: str, block: Block, tables: Mapping[str, Table]) -> None:
    if block.tensors.keys() != tables.keys():
        odd = ", ".join(sorted(block.tensors.keys() ^ tables.keys()))
        raise Refused(f"tensors that came and that were expected differ in {shown(odd)}", block=name)
    for key, table in tables.items():
        fault = table.fault(block.tensors[key])
        if fault:
            raise Refused(f"tensor '{key}' {fault}", block=name)
