"""Training on the server: a block of the pool becomes a model, learns, and becomes a block again."""

from __future__ import annotations

import copy
from collections.abc import Iterable

from torch import Tensor, nn

from intarsia.blocks import Block
from intarsia.training import OPTIMISERS, Training


def filled(model: nn.Module, block: Block) -> nn.Module:
    """Return a copy of the model with the block's values in their places."""
    fresh = copy.deepcopy(model)
    fresh.load_state_dict(dict(block.tensors), strict=False)
    return fresh


def taken(model: nn.Module, like: Block) -> Block:
    """Return the model's values under the names of a block."""
    state = model.state_dict()
    return Block({name: state[name].detach().clone() for name in like.tensors}, like.buffers)


def descend(module: nn.Module, lr: float, losses: Iterable[Tensor]) -> None:
    """Take one step of plain gradient descent for every loss, as it comes."""
    weights = [weight for weight in module.parameters() if weight.requires_grad]
    optimiser = OPTIMISERS["sgd"](weights, Training(), lr)
    module.train()
    for loss in losses:
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
