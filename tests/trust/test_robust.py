"""Merges that bear hostile updates: worked out by hand, and beside byzfl."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import types

import pytest
import torch

from intarsia.blocks import Address, Block, Fold
from intarsia.methods import MERGES
from intarsia.trust import ROBUST, few_holders
from intarsia.trust.robust import CentredClipping, Krum, Median, MultiKrum, Trimmed

HERE = Address("body", "all")


def block(*numbers: float) -> Block:
    return Block({"w": torch.tensor(numbers, dtype=torch.float32)})


def combined(merge, present, *updates, samples=None):
    counts = samples or [1] * len(updates)
    fold = Fold(merge, {HERE: present}, {HERE: sum(counts)})
    for update, count in zip(updates, counts, strict=True):
        fold.add({HERE: update}, {HERE: present.layout}, count, {})
    return fold.finish()[HERE]


def of(merge, *rows, samples=None):
    """Return what a merge makes of changes against [1, 1]."""
    updates = [block(1 + a, 1 + b) for a, b in rows]
    moved = combined(merge, block(1.0, 1.0), *updates, samples=samples).tensors["w"] - 1
    return [round(x, 5) for x in moved.tolist()]


FIVE = [(0, 1), (1, 2), (2, 3), (3, 4), (100, -100)]


def test_the_median_takes_every_coordinate_by_itself():
    assert of(Median(), *FIVE) == [2, 2]
    assert of(Median(), *FIVE[:4]) == [1.5, 2.5]


def test_the_trimmed_mean_leaves_out_both_ends():
    # 0 and 100 go; 1, 2, 3 stay. -100 and 4 go; 1, 2, 3 stay.
    assert of(Trimmed(f=0.2), *FIVE) == [2, 2]
    assert of(Trimmed(f=0.0), *FIVE[:4]) == [1.5, 2.5]


def test_samples_count_only_where_they_are_asked_for():
    rows, samples = [(0, 0), (1, 1), (2, 2), (9, 9)], [1, 3, 1, 1000]
    assert of(Trimmed(f=0.25), *rows, samples=samples) == [1.5, 1.5]
    assert of(Trimmed(f=0.25, weighted=True), *rows, samples=samples) == [1.25, 1.25]


def test_krum_takes_the_one_with_the_closest_neighbours():
    # f = 1: three nearest of five. The sums of squares: 12, 10.25, 6, 12.5, very many.
    rows = [(0, 0), (0.5, 0), (1, 0), (3, 0), (100, 100)]
    scores = {0: 0.25 + 1 + 9, 1: 0.25 + 0.25 + 6.25, 2: 1 + 0.25 + 4, 3: 4 + 6.25 + 9}
    assert min(scores, key=scores.get) == 2
    assert of(Krum(f=0.2), *rows) == [1, 0]
    assert of(MultiKrum(f=0.2), *rows) == [1.125, 0]


def test_centred_clipping_goes_no_further_than_its_radius():
    # Distances from the present version are 5, 0 and 50; with radius 5: (3, 4), (0, 0), (3, 4).
    assert of(CentredClipping(radius=5, iterations=1), (3, 4), (0, 0), (30, 40)) == [
        2,
        pytest.approx(8 / 3, abs=1e-5),
    ]
    # By itself the radius is the median distance, 5 here.
    assert of(CentredClipping(iterations=1), (3, 4), (0, 0), (30, 40)) == [2, pytest.approx(8 / 3, abs=1e-5)]


def test_mixing_puts_the_mean_of_the_nearest_in_the_place_of_each():
    # f = 1 of 4: each becomes the mean of itself and its two nearest: 1, 1, 1 and (1 + 2 + 90) / 3 = 31.
    rows = [(0, 0), (1, 0), (2, 0), (90, 0)]
    assert of(Median(f=0.25, mixing=True), *rows) == [1, 0]
    assert of(Trimmed(f=0.25, mixing=True), *rows) == [1, 0]
    assert of(MultiKrum(f=0.0, mixing=True), *rows) == [23.25, 0]


@pytest.mark.parametrize("kind", ROBUST, ids=lambda kind: kind.name)
@pytest.mark.parametrize("mixing", [False, True])
def test_what_nobody_changed_stays_to_the_last_bit(kind, mixing):
    present = Block({"w": torch.randn(50), "n": torch.tensor(3)}, frozenset({"n"}))
    assert combined(kind(mixing=mixing), present, *[present] * 6).version == present.version


@pytest.mark.parametrize("kind", ROBUST, ids=lambda kind: kind.name)
def test_statistics_and_counts_are_the_median_and_never_the_largest(kind):
    buffers = frozenset({"mean", "count", "on"})

    def update(mean: float, count: int, on: bool) -> Block:
        own = {"mean": torch.tensor([float(mean)]), "count": torch.tensor(count), "on": torch.tensor(on)}
        return Block({"w": torch.zeros(2), **own}, buffers)

    updates = [update(m, c, o) for m, c, o in [(1, 5, True), (2, 6, True), (3, 7, False), (4, 8, True)]]
    merged = combined(kind(), update(0, 0, False), *updates, update(1e6, 2**40, False)).tensors
    assert (merged["mean"].item(), merged["count"].item(), merged["on"].item()) == (3.0, 7, True)


@pytest.mark.parametrize(("holders", "tolerated"), [(2, 0), (3, 0), (4, 1), (5, 1), (8, 2), (10, 2), (20, 4)])
def test_how_many_hostile_holders_an_address_bears(holders, tolerated):
    assert Trimmed(f=0.2).tolerated(holders) == tolerated
    assert Trimmed(f=0.0).tolerated(holders) == 0
    assert Krum(f=0.2).tolerated(holders) == (0 if holders == 4 else tolerated)
    assert Trimmed(f=0.49).tolerated(holders) == (holders - 2) // 2


def test_addresses_with_too_few_holders_are_named():
    holders = {
        Address("head", "a"): 3,
        Address("head", "b"): 9,
        Address("own", "me"): 9,
        Address("x", "c"): 1,
    }
    told = few_holders(Trimmed(), holders)
    assert "head@a has 3 holders" in told
    assert "head@b" not in told
    assert "own" not in told
    assert "x@c" not in told
    assert few_holders(MERGES["mean"](), holders) == ""


def test_they_are_found_by_name():
    assert {"median", "trimmed", "krum", "multi-krum", "centred-clipping"} <= set(MERGES)
    assert "" not in MERGES


@pytest.fixture(scope="module")
def byzfl():
    """The rules of byzfl alone: the package itself imports torchvision."""
    found = importlib.util.find_spec("byzfl")
    if found is None or found.submodule_search_locations is None:
        pytest.skip("needs byzfl (pip install --no-deps byzfl==0.0.11), which brings torchvision otherwise")
    package = types.ModuleType("byzfl")
    package.__path__ = list(found.submodule_search_locations)
    before = sys.modules.get("byzfl")
    sys.modules["byzfl"] = package
    yield importlib.import_module("byzfl.aggregators.aggregators")
    if before is None:
        del sys.modules["byzfl"]


RULES = {
    "median": lambda b, f: b.Median(),
    "trimmed": lambda b, f: b.TrMean(f),
    "krum": lambda b, f: b.Krum(f),
    "multi-krum": lambda b, f: b.MultiKrum(f),
    "centred-clipping": lambda b, f: b.CenteredClipping(L=4, tau=5.0),
}


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("mixing", [False, True])
@pytest.mark.parametrize("holders", [5, 10, 17])
def test_the_rules_are_those_of_byzfl(byzfl, name, mixing, holders):
    random = torch.Generator().manual_seed(holders)
    rows = torch.randn(holders, 60, generator=random, dtype=torch.float64)
    rows[: holders // 5] *= 30
    settings = {"radius": 5.0, "iterations": 4} if name == "centred-clipping" else {}
    merge = MERGES[name](f=0.2, mixing=mixing, **settings)
    f = merge.tolerated(holders)
    theirs = rows.numpy()  # of tensors, byzfl makes single precision
    if mixing:
        theirs = importlib.import_module("byzfl.aggregators.preaggregators").NNM(f)(theirs)
    wanted = torch.from_numpy(RULES[name](byzfl, f)(theirs))
    present = Block({"a": torch.zeros(20, dtype=torch.float64), "b": torch.zeros(4, 10, dtype=torch.float64)})
    updates = [Block({"a": row[:20].clone(), "b": row[20:].reshape(4, 10).clone()}) for row in rows]
    got = combined(merge, present, *updates).tensors
    torch.testing.assert_close(torch.cat([got["a"], got["b"].flatten()]), wanted, rtol=1e-9, atol=1e-9)
