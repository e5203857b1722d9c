import pytest
import torch

from intarsia.blocks import Address, Block
from intarsia.trust import change_norm, clipped

BODY, HEAD = Address("body", "all"), Address("head", "north")
SENT = {
    BODY: Block({"w": torch.tensor([1.0, 1.0]), "seen": torch.tensor(7)}, frozenset({"seen"})),
    HEAD: Block({"w": torch.tensor([0.0])}),
}


def update(*numbers, seen=9):
    one, two, three = numbers
    return {
        BODY: Block({"w": torch.tensor([one, two]), "seen": torch.tensor(seen)}, frozenset({"seen"})),
        HEAD: Block({"w": torch.tensor([three])}),
    }


def test_the_norm_goes_over_all_blocks_of_a_client():
    assert change_norm(update(3.0, 1.0, 0.0), SENT) == 2.0
    assert change_norm(update(2.0, 3.0, 2.0), SENT) == 3.0  # 1, 2 and 2


def test_an_update_within_the_bound_stays_as_it_is():
    blocks, norm = clipped(update(2.0, 3.0, 2.0), SENT, 3.0)
    assert norm == 3.0
    assert blocks[BODY].tensors["w"].tolist() == [2.0, 3.0]


def test_one_further_away_is_scaled_back_in_all_blocks_alike():
    blocks, norm = clipped(update(2.0, 3.0, 2.0), SENT, 1.5)
    assert norm == 3.0
    assert blocks[BODY].tensors["w"].tolist() == [1.5, 2.0]
    assert blocks[HEAD].tensors["w"].tolist() == [1.0]
    assert blocks[BODY].tensors["seen"].item() == 9
    assert change_norm(blocks, SENT) == pytest.approx(1.5)
