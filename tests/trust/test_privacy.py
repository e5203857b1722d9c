"""Bounds on updates, noise on sums, and the ledger, by numbers worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import stats

from intarsia.blocks import Address, Block, Fold, Merge, Update
from intarsia.core import CheckpointError, IntarsiaError, Refused
from intarsia.trust import Privacy, change_norm, held_to_bound
from intarsia.trust.accounting import Release
from intarsia.trust.ledger import Entry, Ledger, spent_by
from intarsia.trust.noise import Keyed, System, add_noise
from intarsia.trust.privacy import BOUND, WITHIN

BASE, HEAD = Address("base", "all"), Address("head", "north")


def blocks(base, head, dtype=torch.float32):
    return {
        BASE: Block({"w": torch.tensor(base, dtype=dtype)}),
        HEAD: Block({"v": torch.tensor(head, dtype=dtype)}),
    }


def update(content, **values):
    return Update("run", 1, "train", "train", "one", "", content, values, 10, {})


def fold_of(present, holders=4):
    return Fold(Merge(), present, dict.fromkeys(present, holders))


def held(content, present, bound, holders=4):
    fold = fold_of(present, holders)
    layouts = {address: block.layout for address, block in present.items()}
    return held_to_bound(update(content), fold, layouts, {BOUND: bound}), fold, layouts


def test_one_bound_holds_over_all_blocks_of_a_client():
    present = blocks([0.0, 0.0], [0.0])
    got, *_ = held(blocks([3.0, 0.0], [4.0]), present, 1.0)
    assert got.blocks[BASE].tensors["w"].tolist() == pytest.approx([0.6, 0.0], abs=1e-6)
    assert got.blocks[HEAD].tensors["v"].tolist() == pytest.approx([0.8], abs=1e-6)
    assert got.values[WITHIN] == 0


def test_an_update_within_its_bound_stays_as_it_is():
    present = blocks([1.0, 2.0], [3.0])
    content = blocks([1.1, 2.0], [3.1])
    got, *_ = held(content, present, 1.0)
    assert got.blocks == content
    assert got.values[WITHIN] == 1


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e5])
@pytest.mark.parametrize("holders", [1, 7, 100_000])
def test_what_one_client_adds_to_all_sums_is_never_more_than_its_bound(scale, holders):
    """Sensitivity, as the sums have it: in whole steps, weighted, of numbers in single precision."""
    draw = torch.Generator().manual_seed(int(holders))
    sent = {a: Block({"w": scale * torch.randn(500, generator=draw)}) for a in (BASE, HEAD)}
    far = {a: Block({"w": b.tensors["w"] + 1e6 * torch.randn(500, generator=draw)}) for a, b in sent.items()}
    bound = 0.5 if scale < 1e5 else 500.0
    got, fold, layouts = held(far, sent, bound, holders)
    fold.add(got.blocks, layouts, 1, {})
    squares = [
        float((sums.tensors["w"].double() * sums.grids["w"].step * holders).square().sum())
        for sums in map(fold.sums, sent)
    ]
    assert 0.99 * bound < math.sqrt(sum(squares)) <= bound


def test_a_bound_that_rounding_swallows_is_refused():
    present = {BASE: Block({"w": torch.full((100,), 1e6)})}
    with pytest.raises(Refused, match="lost in rounding"):
        held({BASE: Block({"w": torch.zeros(100)})}, present, 1e-6, holders=1000)


def test_a_nan_and_a_wrong_shape_are_refused_before_they_are_scaled():
    present = blocks([0.0, 0.0], [0.0])
    with pytest.raises(Refused, match="NaN"):
        held(blocks([math.nan, 0.0], [0.0]), present, 1.0)
    with pytest.raises(Refused, match="expected"):
        held(blocks([0.0, 0.0, 0.0], [0.0]), present, 1.0)


def test_a_task_without_a_bound_is_refused():
    present = blocks([0.0, 0.0], [0.0])
    with pytest.raises(Refused, match="no bound"):
        held_to_bound(update(present), fold_of(present), {a: b.layout for a, b in present.items()}, {})


def test_a_block_smaller_than_its_own_rounding_does_not_move():
    """Where single precision cannot show so small a change, none is better than one beyond the bound."""
    sent = {BASE: Block({"w": torch.full((10,), 3e4)})}
    got, *_ = held({BASE: Block({"w": torch.full((10,), 4e4)})}, sent, 1e-3, holders=1)
    assert change_norm(got.blocks, sent) <= 1e-3


@pytest.mark.parametrize("source", [Keyed(3), System()])
@pytest.mark.parametrize("buffer", [False, True])
def test_noise_has_the_deviation_that_was_asked_for_in_whole_steps(source, buffer):
    names = frozenset({"w"}) if buffer else frozenset()
    present = {BASE: Block({"w": torch.zeros(20_000)}, names)}
    sums = fold_of(present).sums(BASE)
    add_noise(sums, 0.25, source, "test")
    steps = sums.tensors["w"].double()
    assert torch.equal(steps, steps.round())
    values = steps * sums.grids["w"].step
    assert float(values.std()) == pytest.approx(0.25, rel=0.03)
    assert stats.kstest(values.numpy() / 0.25, "norm").pvalue > 1e-4


def test_keyed_noise_repeats_and_differs_by_purpose_and_that_of_the_system_never_repeats():
    assert np.array_equal(Keyed(1).normal(5, "a", 1), Keyed(1).normal(5, "a", 1))
    assert not np.array_equal(Keyed(1).normal(5, "a", 1), Keyed(1).normal(5, "a", 2))
    assert not np.array_equal(System().normal(5), System().normal(5))
    assert len(System().normal(7)) == 7
    drawn = System().uniform(20_000)
    assert drawn.min() > 0
    assert drawn.max() <= 1
    assert stats.kstest(drawn, "uniform").pvalue > 1e-4


def test_noise_that_the_sums_cannot_carry_is_an_error():
    sums = fold_of(blocks([0.0, 0.0], [0.0])).sums(BASE)
    with pytest.raises(IntarsiaError, match="choose a smaller"):
        add_noise(sums, 1e6, Keyed(0), "test")


def test_the_noise_of_sums_and_of_the_count_together_cost_what_the_noise_alone_would():
    privacy = Privacy(clip=1.0, noise=1.5, adaptive=True)
    sums, bits = privacy.sum_noise(100), privacy.bits_noise(100)
    assert bits == 5.0  # a twentieth of the clients
    assert sums**-2 + (2 * bits) ** -2 == pytest.approx(1.5**-2)
    assert privacy.sum_noise(2) == pytest.approx(
        1.5 * math.sqrt(4 / 3)
    )  # of few clients, a quarter goes to the count
    assert Privacy(clip=1.0, noise=1.5).sum_noise(100) == 1.5


def entry(draw, exchange="train", noise=1.0, parts=("base@all",)):
    return Entry(draw=draw, round=1, exchange=exchange, chance=0.5, noise=noise, bound=1.0, parts=parts)


def test_a_ledger_counts_a_release_that_was_played_again_once_and_addresses_apart(tmp_path):
    ledger = Ledger(tmp_path / "privacy.jsonl")
    for one in (entry("1"), entry("1"), entry("2", parts=("base@all", "head@north"))):
        ledger.add(one)
    again = Ledger(tmp_path / "privacy.jsonl").entries
    assert again == ledger.entries
    assert spent_by(again) == {Release(0.5, 1.0): 2}
    assert spent_by(again, "head@north") == {Release(0.5, 1.0): 1}


def test_two_releases_about_the_same_clients_count_as_one_with_less_noise():
    (release,) = spent_by([entry("1", "first"), entry("1", "second")])
    assert release == Release(0.5, pytest.approx(1 / math.sqrt(2)))


def test_a_last_line_that_was_cut_short_was_never_released_and_any_other_damage_is_an_error(tmp_path):
    path = tmp_path / "privacy.jsonl"
    Ledger(path).add(entry("1"))
    whole = path.read_bytes()
    path.write_bytes(whole + whole[:30])
    ledger = Ledger(path)
    assert ledger.entries == [entry("1")]
    ledger.add(entry("2"))
    assert Ledger(path).entries == [entry("1"), entry("2")]
    path.write_bytes(b"{}\n" + whole)
    with pytest.raises(CheckpointError, match="nobody can say what was spent"):
        Ledger(path)
