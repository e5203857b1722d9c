from __future__ import annotations

from collections import OrderedDict

import pytest
import torch
from torch import nn

from intarsia.blocks import Block, Cut
from intarsia.core import CutError


def network() -> nn.Sequential:
    return nn.Sequential(OrderedDict(features=nn.Linear(2, 3), norm=nn.BatchNorm1d(3), head=nn.Linear(3, 2)))


CUT = Cut.of({"base": ["features.*", "norm.*"], "head": "head.*"})


def test_every_parameter_and_buffer_belongs_to_one_block():
    blocks = CUT.split(network())
    assert sorted(blocks["base"].tensors) == [
        "features.bias",
        "features.weight",
        "norm.bias",
        "norm.num_batches_tracked",
        "norm.running_mean",
        "norm.running_var",
        "norm.weight",
    ]
    assert blocks["base"].buffers == {"norm.num_batches_tracked", "norm.running_mean", "norm.running_var"}
    assert sorted(blocks["head"].tensors) == ["head.bias", "head.weight"]


def test_a_block_knows_its_shapes_parameters_and_bytes():
    base = CUT.split(network())["base"]
    assert base.shapes["features.weight"] == (3, 2)
    assert base.parameters == 6 + 3 + 3 + 3
    assert base.nbytes == 4 * (6 + 3 + 3 + 3 + 3 + 3) + 8


def test_join_puts_back_what_split_took():
    one, other = network(), network()
    CUT.join(other, CUT.split(one))
    for name, tensor in one.state_dict().items():
        assert torch.equal(tensor, other.state_dict()[name])


def test_split_copies():
    model = network()
    before = CUT.split(model)["head"].tensors["head.bias"].clone()
    block = CUT.split(model)["head"]
    with torch.no_grad():
        model.head.bias.add_(1)
    assert torch.equal(block.tensors["head.bias"], before)


def test_orphans_are_named():
    with pytest.raises(CutError, match=r"misses 'norm\.weight'.*'norm\.running_mean'"):
        Cut.of({"base": "features.*", "head": "head.*"}).fit(network())


def test_overlaps_are_named():
    with pytest.raises(CutError, match=r"head\.weight \(in base and head\)"):
        Cut.of({"base": "*", "head": "head.*"}).fit(network())


def test_a_pattern_that_matches_nothing_is_an_error():
    with pytest.raises(CutError, match="empty blocks: 'tail'"):
        Cut.of({"all": "*", "tail": "tail.*"}).fit(network())


def test_tied_weights_are_one_tensor():
    model = network()
    model.again = nn.Linear(3, 2)
    model.again.weight = model.head.weight
    cut = Cut.of({"base": ["features.*", "norm.*"], "head": ["head.*", "again.bias"]})
    head = cut.split(model)["head"]
    assert sorted(head.tensors) == ["again.bias", "head.bias", "head.weight"]
    changed = Block({n: t + 1 for n, t in head.tensors.items()}, head.buffers)
    cut.join(model, {"head": changed})
    assert torch.equal(model.again.weight, head.tensors["head.weight"] + 1)


def test_tied_weights_in_two_blocks_are_an_error():
    model = network()
    model.again = nn.Linear(3, 2)
    model.again.weight = model.head.weight
    with pytest.raises(CutError, match=r"head\.weight = again\.weight"):
        Cut.of({"base": ["features.*", "norm.*", "head.*"], "again": "again.*"}).fit(model)


def test_a_buffer_that_the_model_replaces_is_still_found():
    class Counter(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("count", torch.zeros(()))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.count = self.count + 1
            return x

    model = Counter()
    fitted = Cut.whole().fit(model)
    model(torch.ones(1))
    assert fitted.take()["model"].tensors["count"] == 1


def test_join_refuses_what_does_not_fit_and_changes_nothing():
    model = network()
    blocks = CUT.split(model)
    wrong = Block({**blocks["head"].tensors, "head.bias": torch.zeros(3)})
    moved = Block({n: t + 1 for n, t in blocks["base"].tensors.items()}, blocks["base"].buffers)
    before = model.features.weight.clone()
    with pytest.raises(CutError, match=r"'head\.bias' has shape \[3\], the model wants \[2\]"):
        CUT.join(model, {"base": moved, "head": wrong})
    assert torch.equal(model.features.weight, before)
    with pytest.raises(CutError, match="no block 'tail'"):
        CUT.join(model, {"tail": wrong})


def test_state_that_is_no_tensor_is_named():
    class Odd(nn.Linear):
        def get_extra_state(self) -> dict[str, int]:
            return {"a": 1}

    with pytest.raises(CutError, match="_extra_state"):
        Cut.whole().fit(Odd(1, 1))
