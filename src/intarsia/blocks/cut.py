"""The cut: which tensors of a model belong to which block; every tensor to exactly one."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from glob import escape

import torch
from torch import Tensor, nn

from intarsia.blocks.block import Block
from intarsia.core import CutError

MERGEABLE = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


@dataclass(frozen=True)
class Cut:
    """Patterns (`features.*`) by block name; the order of the blocks is the order given."""

    patterns: Mapping[str, Sequence[str]]

    @classmethod
    def of(cls, patterns: Mapping[str, str | Sequence[str]]) -> Cut:
        """Make a cut from one pattern or several per block."""
        if not isinstance(patterns, Mapping):
            raise CutError(f'a cut is a dict of patterns by block, as {{"head": "head.*"}}, not {patterns!r}')
        return cls({block: (p,) if isinstance(p, str) else tuple(p) for block, p in patterns.items()})

    @classmethod
    def whole(cls, block: str = "model") -> Cut:
        """Make the cut that has one block for everything."""
        return cls({block: ("*",)})

    @property
    def blocks(self) -> tuple[str, ...]:
        """The names of the blocks."""
        return tuple(self.patterns)

    def blocks_of(self, names: Iterable[str]) -> set[str]:
        """Return the blocks whose patterns match any of these names (one tensor, with its tied names)."""
        return {
            block
            for block, patterns in self.patterns.items()
            if any(fnmatchcase(name, pattern) for name in names for pattern in patterns)
        }

    def apart(self, model: nn.Module, block: str, names: Collection[str]) -> Cut:
        """Return a cut of this model in which these tensors form a block of their own."""
        if block in self.patterns:
            raise CutError(f"'{block}' is the name of a block that is made by itself: rename yours")
        members = {b: [n for n in own if n not in names] for b, own in self.fit(model).members.items()}
        moved = {block: [n for n in self.fit(model).flat() if n in names]}
        return Cut({b: tuple(map(escape, own)) for b, own in (members | moved).items() if own})

    def fit(self, model: nn.Module) -> FittedCut:
        """Bind the cut to a model, checking that every tensor belongs to exactly one block."""
        members: dict[str, list[str]] = {block: [] for block in self.patterns}
        orphans, overlaps = [], []
        for names in _tensor_names(model):
            owners = self.blocks_of(names)
            if len(owners) == 1:
                members[owners.pop()].append(names[0])
            elif owners:
                overlaps.append(f"{' = '.join(names)} (in {' and '.join(sorted(owners))})")
            else:
                orphans.append(names[0])
        empty = [block for block, names in members.items() if not names]
        _complain(model, orphans, overlaps, empty)
        return FittedCut(model, members)

    def split(self, model: nn.Module) -> dict[str, Block]:
        """Return copies of the model's tensors, block by block."""
        return self.fit(model).take()

    def join(self, model: nn.Module, blocks: Mapping[str, Block]) -> None:
        """Copy the blocks' tensors into the model, by name."""
        self.fit(model).fill(blocks)


@dataclass(frozen=True)
class FittedCut:
    """A cut bound to one model: the names of each block's tensors, one name a tensor."""

    model: nn.Module
    members: Mapping[str, Sequence[str]]

    def flat(self) -> list[str]:
        """Return the names of all tensors, block by block."""
        return [name for names in self.members.values() for name in names]

    def take(self, blocks: Collection[str] | None = None) -> dict[str, Block]:
        """Return copies of the named blocks (all by default)."""
        state = self.model.state_dict(keep_vars=True)
        return {
            name: Block(
                {n: _plain_copy(state[n]) for n in self.members[name]},
                frozenset(n for n in self.members[name] if not isinstance(state[n], nn.Parameter)),
            )
            for name in (self.members if blocks is None else blocks)
        }

    @torch.no_grad()
    def fill(self, blocks: Mapping[str, Block]) -> None:
        """Copy blocks into the model in place; nothing is copied if anything does not fit."""
        state = self.model.state_dict(keep_vars=True)
        for name, block in blocks.items():
            self._check(name, block, state)
        for name, block in blocks.items():
            for tensor_name in self.members[name]:
                state[tensor_name].copy_(block.tensors[tensor_name])

    def _check(self, name: str, block: Block, state: Mapping[str, Tensor]) -> None:
        if name not in self.members:
            raise CutError(f"the model has no block '{name}'; its blocks: {', '.join(self.members)}")
        wrong = sorted(set(self.members[name]) ^ block.tensors.keys())
        if wrong:
            raise CutError(f"block '{name}' does not fit the model: {_few(wrong)} on one side only")
        for tensor_name, tensor in block.tensors.items():
            wanted = state[tensor_name].shape
            if tensor.shape != wanted:
                raise CutError(
                    f"block '{name}' does not fit the model: tensor '{tensor_name}' has shape "
                    f"{list(tensor.shape)}, the model wants {list(wanted)}"
                )


def _plain_copy(tensor: Tensor) -> Tensor:
    copy = torch.empty(tensor.shape, dtype=tensor.dtype)
    return copy.copy_(tensor.detach())


def _tensor_names(model: nn.Module) -> list[list[str]]:
    """All names of every tensor of the state, tensor by tensor: tied weights have several."""
    found: dict[int, list[str]] = {}
    for name, value in model.state_dict(keep_vars=True).items():
        if not isinstance(value, Tensor):
            raise CutError(
                f"'{name}' of {type(model).__name__} is a {type(value).__name__}, not a tensor; "
                "only tensors can be shared: drop get_extra_state or keep it out of the state"
            )
        if value.is_complex() or (value.is_floating_point() and value.dtype not in MERGEABLE):
            raise CutError(
                f"'{name}' of {type(model).__name__} is of type {value.dtype}, which cannot be merged; "
                "use real numbers of 16, 32 or 64 bits"
            )
        found.setdefault(id(value), []).append(name)
    return list(found.values())


def _complain(model: nn.Module, orphans: list[str], overlaps: list[str], empty: list[str]) -> None:
    where = f"the cut of {type(model).__name__}"
    if orphans:
        raise CutError(f"{where} misses {_few(orphans)}: add a pattern that covers it to one of the blocks")
    if overlaps:
        raise CutError(f"{where} gives tensors to two blocks: {_few(overlaps)}; narrow one pattern")
    if empty:
        raise CutError(f"{where} has empty blocks: {_few(empty)} match no tensor of the model")


def _few(names: Sequence[str], most: int = 5) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(f"'{name}'" for name in names[:most]) + more
