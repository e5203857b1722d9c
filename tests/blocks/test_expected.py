"""What a method declares of its answers, and what is refused."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from intarsia.blocks import Block, Expected, Number, NumberList, Table, Update
from intarsia.core import Refused


def update(values: dict[str, Any] | None = None, **tensors: Block) -> Update:
    return Update("r", 1, "train", "train", "c", "", {}, values or {}, samples=1, tensors=tensors)


@pytest.mark.parametrize(("kind", "value"), [(Number(0, 1), 0), (Number(0, 1), 1.0), (Number(0, 9, True), 9)])
def test_numbers_within_their_bounds_pass(kind, value):
    Expected({"x": kind}).check(update({"x": value}))


@pytest.mark.parametrize("value", [-1e-9, 1.1, math.nan, math.inf, 10**400, True, "1", None, [1]])
def test_other_numbers_are_refused(value):
    with pytest.raises(Refused, match="the update reports x = "):
        Expected({"x": Number(0, 1)}).check(update({"x": value}))


def test_a_loss_may_be_endless_but_not_absurd():
    loss = Expected({"loss": Number(-9, 9, endless=True)})
    for value in (math.nan, math.inf, 3):
        loss.check(update({"loss": value}))
    for value in (10**400, 1e308):
        with pytest.raises(Refused):
            loss.check(update({"loss": value}))


def test_what_is_missing_or_more_is_named():
    expected = Expected({"x": Number(0, 1)}, {"y": Number(0, 1)})
    expected.check(update({"x": 1}))
    expected.check(update({"x": 1, "y": 0}))
    with pytest.raises(Refused, match="has no value 'x'"):
        expected.check(update({"y": 1}))
    with pytest.raises(
        Refused, match=r"has value 'z', which the method does not expect \(see Method.expects\)"
    ):
        expected.check(update({"x": 1, "z": 1}))
    with pytest.raises(Refused, match="has tensors 'more'"):
        expected.check(update({"x": 1}, more=Block({})))


def test_what_nothing_is_known_of_must_be_plain():
    others = Expected(others=True)
    others.check(update({"x": [1, "a", {"b": None}]}, more=Block({"t": torch.zeros(2)})))
    for value in (10**400, math.nan, "\ud800", [[math.inf]], {"a": {"b": 2**60}}):
        with pytest.raises(Refused, match="the update reports x = it holds"):
            others.check(update({"x": value}))
    with pytest.raises(Refused, match="holds a NaN"):
        others.check(update(more=Block({"t": torch.tensor([math.nan])})))


def test_lists_have_their_length():
    expected = Expected({"x": NumberList(2, Number(-1, 1))})
    expected.check(update({"x": [0.5, -1]}))
    for value in ([0.5], [0.5, 2.0], [0.5, None], "ab", None):
        with pytest.raises(Refused, match="2 finite numbers"):
            expected.check(update({"x": value}))


def test_tables_have_their_form_and_bounds():
    expected = Expected(tensors={"t": {"a": Table((-1, 3), 0, 1)}})
    expected.check(update(t=Block({"a": torch.rand(5, 3)})))
    wrong = [
        torch.rand(5, 2),
        torch.rand(0, 3),
        torch.rand(3),
        torch.rand(5, 3).double(),
        torch.rand(5, 3) + 1,
    ]
    for tensor in [*wrong, torch.full((1, 3), math.nan), torch.zeros(1, 3).to(torch.float8_e4m3fn)]:
        with pytest.raises(Refused, match="tensor 'a'"):
            expected.check(update(t=Block({"a": tensor})))
    with pytest.raises(Refused, match="differ in 'a, b'"):
        expected.check(update(t=Block({"b": torch.rand(5, 3)})))
    assert Expected(tensors={"t": {"a": Table((5, 3))}}).nbytes == 60
