"""How far an update goes from what was sent, over all of its blocks; and the same update, no further than a bound."""

from __future__ import annotations

import math
from collections.abc import Mapping

from intarsia.blocks import Address, Block

Blocks = Mapping[Address, Block]


def change_norm(blocks: Blocks, sent: Blocks) -> float:
    """Return the Euclidean norm of all changes of an update: of every block, parameters and statistics alike."""
    squares = [
        float((tensor.double() - sent[address].tensors[name]).square().sum())
        for address, block in blocks.items()
        for name, tensor in block.tensors.items()
        if tensor.is_floating_point()
    ]
    return math.sqrt(math.fsum(squares))


def clipped(blocks: Blocks, sent: Blocks, bound: float) -> tuple[dict[Address, Block], float]:
    """Return an update whose changes are scaled back to a norm of at most `bound`, and the norm that it came with."""
    norm = change_norm(blocks, sent)
    if norm <= bound:
        return dict(blocks), norm
    return {a: _scaled(block, sent[a], bound / norm) for a, block in blocks.items()}, norm


def _scaled(block: Block, sent: Block, share: float) -> Block:
    """Return a block that goes only a share of its way; integers stay as they are."""
    tensors = {
        name: sent.tensors[name].double().lerp(tensor.double(), share).to(tensor.dtype)
        if tensor.is_floating_point()
        else tensor
        for name, tensor in block.tensors.items()
    }
    return block.alike(tensors)
