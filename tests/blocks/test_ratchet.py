"""The largest value that can be merged grows with the version sent, but not without end."""

from __future__ import annotations

import pytest
import torch

from intarsia.blocks import Address, Block, Fold, Merge
from intarsia.blocks.sums import Grid
from intarsia.core import Refused

HERE = Address("body", "all")


def pushed(present: Block) -> Block:
    """Return the next version if one of ten clients sends the largest value that passes."""
    limit = Grid.of(present.tensors["w"], buffer=False).limit
    fold = Fold(Merge(), {HERE: present}, {HERE: 10})
    for value in [limit] + [float(present.tensors["w"])] * 9:
        fold.add({HERE: Block({"w": torch.tensor([value])})}, {HERE: present.layout}, 1, {})
    return fold.finish()[HERE]


def test_an_attacker_that_raises_the_limit_round_by_round_comes_to_an_end():
    present, seen = Block({"w": torch.tensor([0.5])}), []
    for _ in range(40):
        present = pushed(present)
        seen.append(float(present.tensors["w"]))
    assert seen[0] > 500, "one round still has the room that training may need"
    assert seen[1] > 10 * seen[0], "the limit grows with the model"
    assert max(seen) <= 2.0**20, "and ends"


def test_beyond_the_end_values_are_refused_by_name():
    present = Block({"w": torch.tensor([2.0**19])})
    fold = Fold(Merge(), {HERE: present}, {HERE: 1})
    with pytest.raises(Refused, match=r"more than 1.05e\+06 can be merged"):
        fold.add({HERE: Block({"w": torch.tensor([2.0**21])})}, {HERE: present.layout}, 1, {})


def test_a_model_that_is_larger_from_the_start_keeps_its_size():
    assert Grid.of(torch.tensor([3e9]), buffer=False).limit == 2.0**32
    assert Grid.of(torch.tensor([2.0**70]), buffer=True).limit == 2.0**70
    assert Grid.of(torch.tensor([1.0]), buffer=True).limit == 2.0**31
