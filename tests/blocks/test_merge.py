"""Merges against numbers worked out by hand on three-element parameters."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from intarsia.blocks import Address, Block, Fold, Merge
from intarsia.core import Refused
from intarsia.methods.fednova import Nova
from intarsia.methods.heterofl import SliceMean
from intarsia.methods.personal import Relaxed

HERE = Address("model", "all")


def block(w, *, mean=None, count=None) -> Block:
    tensors = {"w": torch.tensor(w, dtype=torch.float32)}
    buffers = set()
    if mean is not None:
        tensors["mean"] = torch.tensor(mean, dtype=torch.float32)
        buffers.add("mean")
    if count is not None:
        tensors["count"] = torch.tensor(count)
        buffers.add("count")
    return Block(tensors, frozenset(buffers))


def merged(rule: Merge, present: Block, updates, planned=None) -> Block:
    """`updates`: (block, samples, values)."""
    total = planned or sum(n for _, n, _ in updates)
    fold = Fold(rule, {HERE: present}, {HERE: total})
    for update, n, values in updates:
        fold.add({HERE: update}, {HERE: update.layout if rule.partial else present.layout}, n, values)
    return fold.finish()[HERE]


def test_weighted_mean():
    # (1 * [1, 2, 3] + 3 * [5, 6, -1]) / 4 = [4, 5, 0]
    result = merged(Merge(), block([0, 0, 0]), [(block([1, 2, 3]), 1, {}), (block([5, 6, -1]), 3, {})])
    assert result.tensors["w"].tolist() == [4, 5, 0]


def test_float_buffers_are_averaged_and_integer_buffers_take_the_maximum():
    present = block([0, 0, 0], mean=[0.0], count=3)
    updates = [
        (block([0, 0, 0], mean=[1.0], count=5), 1, {}),
        (block([0, 0, 0], mean=[3.0], count=9), 1, {}),
    ]
    result = merged(Merge(), present, updates)
    assert result.tensors["mean"].tolist() == [2]
    assert result.tensors["count"].item() == 9
    assert result.layout == present.layout


def test_a_missing_client_does_not_shrink_the_mean():
    # 4 samples were planned, only the client with 1 came: the mean is its own value.
    result = merged(Merge(), block([0, 0, 0]), [(block([1, 2, 3]), 1, {})], planned=4)
    assert result.tensors["w"].tolist() == [1, 2, 3]


def test_without_updates_the_present_version_stays():
    present = block([1, 2, 3])
    fold = Fold(Merge(), {HERE: present}, {HERE: 4})
    with pytest.raises(Refused):
        fold.add({HERE: block([1, 2])}, {HERE: present.layout}, 1, {})
    assert all(b is present for b in fold.finish().values())


def test_nova():
    # p = 1/4, 3/4; a = 2, 4; changes (x - x_i)/a_i: [1, 0, -1]/2 and [0, 4, 4]/4
    # mean change: [.125, 0, -.125] + [0, .75, .75] = [.125, .75, .625]; tau_eff = .5 + 3 = 3.5
    # x - 3.5 * mean = [2 - .4375, 4 - 2.625, 6 - 2.1875]
    present = block([2, 4, 6], mean=[0.0])
    updates = [
        (block([1, 4, 7], mean=[4.0]), 1, {"step_weight": 2}),
        (block([2, 0, 2], mean=[8.0]), 3, {"step_weight": 4}),
    ]
    result = merged(Nova(), present, updates)
    assert result.tensors["w"].tolist() == [1.5625, 1.375, 3.8125]
    assert result.tensors["mean"].tolist() == [7]


def test_nova_with_equal_steps_is_the_mean():
    present = block([2, 4, 6])
    updates = [(block([1, 4, 7]), 1, {"step_weight": 5}), (block([2, 0, 2]), 3, {"step_weight": 5})]
    plain = merged(Merge(), present, updates)
    torch.testing.assert_close(merged(Nova(), present, updates).tensors["w"], plain.tensors["w"])


@pytest.mark.parametrize("weight", [None, 0, -1, math.inf, math.nan, "2"])
def test_nova_refuses_a_useless_step_weight(weight):
    with pytest.raises(Refused, match="step_weight"):
        merged(Nova(), block([1, 1, 1]), [(block([1, 1, 1]), 1, {"step_weight": weight})])


@pytest.mark.parametrize(
    ("beta", "expected"),
    # The mean is [4, 5, 0], the present version [2, 1, 8]: a step of [2, 4, -8] times beta.
    [(0.5, [3, 3, 4]), (1.0, [4, 5, 0]), (2.0, [6, 9, -8])],
)
def test_relaxed_goes_beta_of_the_way(beta, expected):
    present = block([2, 1, 8], mean=[0.0], count=1)
    updates = [
        (block([1, 2, 3], mean=[4.0], count=2), 1, {}),
        (block([5, 6, -1], mean=[8.0], count=5), 3, {}),
    ]
    result = merged(Relaxed(beta=beta), present, updates)
    assert result.tensors["w"].tolist() == expected
    assert result.tensors["mean"].tolist() == [7]  # buffers go all of the way
    assert result.tensors["count"].item() == 5
    assert result.layout == present.layout


def test_mean_over_leading_slices():
    # w0: (1*2 + 3*6)/4 = 5; w1: only the second client: 8; w2: nobody: stays 9
    present = block([7, 8, 9])
    updates = [(block([2]), 1, {}), (block([6, 8]), 3, {})]
    result = merged(SliceMean(), present, updates)
    assert result.tensors["w"].tolist() == [5, 8, 9]


def test_rows_that_an_update_does_not_count_in_are_as_if_it_did_not_hold_them():
    # Row 0: (1*2 + 3*6)/4 = 5; row 1: the second client alone, 8; row 2: held by nobody, 9. Row 7 is nobody's.
    present = Block({"w": torch.tensor([[7.0], [1.0], [9.0]]), "v": torch.tensor([1.0])})
    one = Block({"w": torch.tensor([[2.0], [50.0], [50.0]]), "v": torch.tensor([5.0])})
    two = Block({"w": torch.tensor([[6.0], [8.0]]), "v": torch.tensor([9.0])})
    updates = [(one, 1, {"rows": {"w": [0, 7], "elsewhere": [0]}}), (two, 3, {"rows": {"w": [0, 1, 1]}})]
    for order in (updates, updates[::-1]):
        result = merged(SliceMean(), present, order)
        assert result.tensors["w"].tolist() == [[5], [8], [9]]
        assert result.tensors["v"].tolist() == [8]


@pytest.mark.parametrize(
    "rows", [[0], {"w": 0}, {"w": [0.0]}, {"w": [True]}, {"w": [-1]}, {"w": ["0"]}, None]
)
def test_rows_that_are_none_are_refused_before_anything_is_added(rows):
    present = block([7, 8, 9])
    fold = Fold(SliceMean(), {HERE: present}, {HERE: 4})
    with pytest.raises(Refused, match="rows"):
        fold.add({HERE: block([2])}, {HERE: block([2]).layout}, 1, {"rows": rows})
    assert fold.finish()[HERE].tensors["w"].tolist() == [7, 8, 9]


def test_mean_over_leading_slices_in_two_dimensions():
    present = Block({"w": torch.zeros(2, 2)})
    updates = [(Block({"w": torch.tensor([[4.0]])}), 1, {}), (Block({"w": torch.full((2, 2), 8.0)}), 1, {})]
    assert merged(SliceMean(), present, updates).tensors["w"].tolist() == [[6, 8], [8, 8]]


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        (Block({"v": torch.zeros(3)}), "tensor 'w' is missing"),
        (Block({"w": torch.zeros(3), "v": torch.zeros(1)}), "tensor 'v' is not part"),
        (Block({"w": torch.zeros(2)}), r"float32\[2\], expected w: float32\[3\]"),
        (Block({"w": torch.zeros(3, dtype=torch.float64)}), r"float64\[3\], expected w: float32\[3\]"),
        (block([1, math.nan, 1]), "holds a NaN"),
        (block([1, -math.inf, 1]), "holds an infinity"),
        (block([1, 1e7, 1]), "training diverged"),
    ],
)
def test_bad_updates_are_refused_and_nothing_is_added(wrong, reason):
    present = block([1, 2, 3])
    other = Address("other", "all")
    fold = Fold(Merge(), {HERE: present, other: present}, {HERE: 4, other: 4})
    good = {HERE: present.layout, other: present.layout}
    with pytest.raises(Refused, match=reason) as caught:
        fold.add({other: block([9, 9, 9]), HERE: wrong}, good, 1, {})
    assert caught.value.block == "model"
    fold.add({HERE: block([5, 6, 7]), other: block([5, 6, 7])}, good, 1, {})
    assert all(b.tensors["w"].tolist() == [5, 6, 7] for b in fold.finish().values())


def test_missing_and_surplus_blocks_are_refused():
    present = block([1, 2, 3])
    fold = Fold(Merge(), {HERE: present}, {HERE: 1})
    with pytest.raises(Refused, match="model@all"):
        fold.add({}, {HERE: present.layout}, 1, {})


numbers = st.floats(-100, 100, width=32)
clients = st.lists(
    st.tuples(st.lists(numbers, min_size=3, max_size=3), st.integers(1, 500), st.integers(1, 40)),
    min_size=2,
    max_size=6,
)


RULES = [Merge(), Nova(), SliceMean(), Relaxed(beta=0.7)]


@settings(max_examples=100, deadline=None)
@given(clients=clients, split=st.integers(0, 6), rule=st.sampled_from(RULES))
def test_no_order_and_no_grouping_changes_a_bit(clients, split, rule):
    present = block([0.1, -7, 50], count=2)
    updates = [(block(w, count=steps), n, {"step_weight": float(steps)}) for w, n, steps in clients]
    total = sum(n for _, n, _ in updates)
    layout = {HERE: present.layout}

    def fold(part):
        made = Fold(rule, {HERE: present}, {HERE: total})
        for update, n, values in part:
            made.add({HERE: update}, layout, n, values)
        return made

    reference = fold(updates).finish()[HERE]
    for order in itertools.islice(itertools.permutations(updates), 4):
        first, second = fold(order[:split]), fold(order[split:])
        header, tensors = second.dump()
        first.absorb(header, Block.from_bytes(tensors.to_bytes()))
        result = first.finish()[HERE]
        assert result.version == reference.version


def test_mean_is_as_exact_as_float32():
    torch.manual_seed(0)
    updates = [(Block({"w": torch.randn(1000)}), n, {}) for n in range(1, 30)]
    weights = torch.tensor([n for _, n, _ in updates], dtype=torch.float64)
    stacked = torch.stack([b.tensors["w"].double() for b, _, _ in updates])
    exact = (weights[:, None] * stacked).sum(0) / weights.sum()
    result = merged(Merge(), Block({"w": torch.zeros(1000)}), updates).tensors["w"]
    torch.testing.assert_close(result.double(), exact, rtol=1e-7, atol=1e-9)
