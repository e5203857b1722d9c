"""The partitions deal as their papers say."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from pydantic import ValidationError

from intarsia.core import DataError
from intarsia.data.partitions import PARTITIONS, pachinko
from intarsia.data.partitions import base as partitions
from intarsia.data.partitions.base import Partition, Shares
from intarsia.data.partitions.cohorts import PermutedLabels, ShiftedInputs
from intarsia.data.partitions.dirichlet import Dirichlet
from intarsia.data.partitions.iid import IID
from intarsia.data.partitions.label_clusters import LabelClusters
from intarsia.data.partitions.labels import Labels
from intarsia.data.partitions.natural import Natural
from intarsia.data.partitions.noise import Noise
from intarsia.data.partitions.pachinko import Pachinko
from intarsia.data.partitions.stratified import stratified
from intarsia.data.partitions.two_classes import TwoClasses
from intarsia.data.partitions.windows import Windows

Rows = NDArray[np.int64]

EVERY: list[Partition] = [
    IID(),
    Dirichlet(),
    Labels(per_client=2),
    Noise(),
    PermutedLabels(),
    ShiftedInputs(),
    LabelClusters(),
    Pachinko(coarse_of_fine=(0, 0, 1, 1, 2, 2, 3, 3, 4, 4)),
    Natural(),
    TwoClasses(),
    Windows(labels_per_group=3),
]
COVERS = {
    "iid",
    "dirichlet",
    "labels",
    "noise",
    "permuted_labels",
    "shifted_inputs",
    "label_clusters",
    "two_classes",
}
SEVERAL = [p for p in EVERY if p.name != "natural"]


def named(partition: Partition) -> str:
    return partition.name


def equal_labels(classes: int, each: int) -> Rows:
    return np.tile(np.arange(classes), each)


def origins(labels: Rows) -> Rows:
    return np.arange(len(labels)) // 50 * 3 + 7


def deal(partition: Partition, labels: Rows, clients: int, seed: int = 0) -> Shares:
    return partition.deal(labels, clients, seed, origins(labels))


def sizes(shares: Shares) -> list[int]:
    return [len(rows) for rows in shares]


def held(labels: Rows, shares: Shares) -> list[set[int]]:
    return [set(labels[rows].tolist()) for rows in shares]


def same(one: Shares, other: Shares) -> bool:
    return len(one) == len(other) and all(map(np.array_equal, one, other))


# What every partition promises


def test_every_partition_is_registered_and_tried() -> None:
    assert [p.name for p in EVERY] == list(PARTITIONS)
    assert all(type(p) is PARTITIONS[p.name] and p.summary for p in EVERY)


@pytest.mark.parametrize("partition", EVERY, ids=named)
def test_shares_are_sorted_and_disjoint_and_cover_where_promised(partition: Partition) -> None:
    labels = equal_labels(10, 100)
    shares = deal(partition, labels, 20)
    rows = np.concatenate(shares)
    assert len(shares) == 20
    assert all(s.dtype == np.int64 and (np.diff(s) > 0).all() and len(s) for s in shares)
    assert len(np.unique(rows)) == len(rows)
    assert rows.min() >= 0
    assert rows.max() < len(labels)
    assert partition.name not in COVERS or len(rows) == len(labels)


@pytest.mark.parametrize("partition", EVERY, ids=named)
def test_the_seed_decides(partition: Partition) -> None:
    labels = equal_labels(10, 100)
    first = deal(partition, labels, 12, seed=1)
    assert same(first, deal(partition, labels, 12, seed=1))
    assert not same(first, deal(partition, labels, 12, seed=2))


@settings(max_examples=15, deadline=None)
@given(
    which=st.integers(0, len(SEVERAL) - 1),
    each=st.integers(40, 80),
    clients=st.integers(10, 25),
    seed=st.integers(0, 2**31),
)
def test_any_size_and_seed(which: int, each: int, clients: int, seed: int) -> None:
    partition, labels = SEVERAL[which], equal_labels(10, each)
    shares = deal(partition, labels, clients, seed)
    rows = np.concatenate(shares)
    assert len(np.unique(rows)) == len(rows)
    assert partition.name not in COVERS or len(rows) == len(labels)
    assert min(sizes(shares)) >= 1


@pytest.mark.parametrize("partition", SEVERAL, ids=named)
def test_one_client_gets_what_there_is(partition: Partition) -> None:
    labels = np.zeros(30, np.int64)
    changes: dict[str, dict[str, Any]] = {
        "labels": {"per_client": 1},
        "label_clusters": {"clusters": 1},
        "two_classes": {"per_client": 1},
        "windows": {"labels_per_group": 1},
        "pachinko": {"coarse_of_fine": (0,)},
    }
    single = PARTITIONS[partition.name](**changes.get(partition.name, {}))
    assert same(single.deal(labels, 1, 0), [np.arange(30)])


@pytest.mark.parametrize("partition", EVERY, ids=named)
@pytest.mark.parametrize(
    ("labels", "clients", "message"),
    [
        ([], 1, "there are no samples to deal"),
        ([[0, 1], [1, 0]], 1, "one a sample, not int64"),
        ([0.5, 1.0], 1, "whole numbers.*float64"),
        ([0, -2, 1], 1, "there is a label -2: number the labels from 0"),
        ([0, 1], 0, "cannot deal to 0 clients"),
        ([0, 1], 3, "2 samples are too few for 3 clients: lower clients"),
    ],
)
def test_bad_data_are_named(partition: Partition, labels: Any, clients: int, message: str) -> None:
    with pytest.raises(DataError, match=f"'{partition.name}': .*{message}"):
        partition.deal(np.array(labels), clients, 0)


@pytest.mark.parametrize(
    "partition", [Labels(per_client=2), TwoClasses(), Windows(labels_per_group=2)], ids=named
)
def test_an_empty_label_is_named_where_labels_are_held(partition: Partition) -> None:
    with pytest.raises(DataError, match="label 1 has no sample: number the labels"):
        partition.deal(np.array([0, 2, 3] * 30), 8, 0)
    with pytest.raises(DataError, match=r"labels \[0, 2\] have no sample"):
        partition.deal(np.array([1, 3] * 30), 8, 0)


@pytest.mark.parametrize("partition", [IID(), Dirichlet(), Noise(), LabelClusters(clusters=2)], ids=named)
def test_an_empty_label_does_not_matter_elsewhere(partition: Partition) -> None:
    labels = np.array([0, 2, 5] * 100)
    assert sum(sizes(partition.deal(labels, 5, 0))) == 300


@pytest.mark.parametrize(
    ("kind", "wrong"),
    [
        (Dirichlet, {"beta": 0}),
        (Dirichlet, {"minimum": -1}),
        (Labels, {}),
        (Labels, {"per_client": 0}),
        (Noise, {"sigma": -0.1}),
        (Noise, {"spread": "range"}),
        (LabelClusters, {"alpha": -1}),
        (LabelClusters, {"clusters": 0}),
        (Pachinko, {"alpha": 0}),
        (Pachinko, {"beta": 0}),
        (Pachinko, {"coarse_of_fine": (0, -1)}),
        (TwoClasses, {"per_client": 0}),
        (Windows, {"labels_per_group": 0}),
        (IID, {"beta": 1}),
    ],
)
def test_wrong_settings_are_refused(kind: type[Partition], wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        kind(**wrong)


def test_a_partition_without_a_rule_says_so() -> None:
    class Unfinished(Partition):
        name = "unfinished"

    with pytest.raises(DataError, match="Unfinished does not say how it deals"):
        Unfinished().deal(np.array([0]), 1, 0)


# iid


def test_iid_sizes_differ_by_at_most_one() -> None:
    assert sorted(sizes(IID().deal(equal_labels(2, 50), 7, 0))) == [14] * 5 + [15] * 2


# dirichlet


@pytest.mark.parametrize(
    ("clients", "low", "high"), [(10, (500, 4500), (5500, 10_000)), (100, (10, 220), (700, 2200))]
)
def test_dirichlet_sizes_on_fifty_thousand(clients: int, low: tuple[int, int], high: tuple[int, int]) -> None:
    labels = np.repeat(np.arange(10), 5000)
    for seed in range(5):
        found = sizes(Dirichlet().deal(labels, clients, seed))
        print(f"Dir(0.5), {clients} clients, seed {seed}: {min(found)} to {max(found)}")
        assert sum(found) == 50_000
        assert low[0] <= min(found) <= low[1]
        assert high[0] <= max(found) <= high[1]


def test_dirichlet_gives_no_more_to_a_client_that_has_its_part() -> None:
    for seed in range(20):
        labels = np.repeat(np.arange(6), 50)
        for rows in Dirichlet(beta=0.3, minimum=1).deal(labels, 5, seed):
            before = np.cumsum(np.bincount(labels[rows], minlength=6))
            full = np.flatnonzero(before >= 300 / 5)
            assert len(full) == 0 or before[full[0]] == before[-1]


def test_dirichlet_cuts_a_label_in_its_proportions() -> None:
    cut = partitions.sizes_in_proportion(10, np.array([0.25, 0.0, 0.5, 0.25, 0.0]))
    assert cut.tolist() == [2, 0, 5, 3, 0]  # ends at 2.5, 2.5, 7.5, 10, 10


def test_dirichlet_mean_and_variance_of_a_label() -> None:
    parts = np.array(
        [sizes(Dirichlet(beta=0.5, minimum=0).deal(np.zeros(1000, np.int64), 4, s)) for s in range(400)]
    )
    assert parts.mean(axis=0) == pytest.approx([250] * 4, abs=45)
    assert parts.std() / 1000 == pytest.approx((0.25 * 0.75 / 3) ** 0.5, abs=0.03)


def test_dirichlet_draws_again_until_the_minimum() -> None:
    labels = equal_labels(2, 100)
    assert min(sizes(Dirichlet(minimum=0).deal(labels, 10, 0))) < 10
    assert min(sizes(Dirichlet(minimum=10).deal(labels, 10, 0))) >= 10


def test_dirichlet_says_when_the_minimum_cannot_be_met(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DataError, match=r"95 samples cannot give 10 clients at least 10 each: lower"):
        Dirichlet().deal(equal_labels(5, 19), 10, 0)
    monkeypatch.setattr(partitions, "REDRAWS", 50)
    with pytest.raises(DataError, match=r"50 draws .*at least 10 of 100 samples: raise beta, or lower"):
        Dirichlet(beta=0.01).deal(equal_labels(10, 10), 10, 0)


@pytest.mark.parametrize("tiny", [1e-300, 1e-12])
def test_a_tiny_concentration_still_deals_everything(tiny: float) -> None:
    labels = equal_labels(4, 25)
    assert sum(sizes(Dirichlet(beta=tiny, minimum=0).deal(labels, 5, 0))) == 100
    assert sum(sizes(LabelClusters(alpha=tiny, minimum=0).deal(labels, 5, 0))) == 100
    table = (0, 0, 1, 1)
    assert sum(sizes(Pachinko(alpha=tiny, beta=tiny, coarse_of_fine=table).deal(labels, 5, 0))) == 100


# labels: #M=k


@pytest.mark.parametrize("k", [1, 2, 3, 10])
def test_labels_holds_its_own_and_k_minus_one_others(k: int) -> None:
    labels = equal_labels(10, 120)
    shares = Labels(per_client=k).deal(labels, 25, 3)
    for client, own in enumerate(held(labels, shares)):
        assert client % 10 in own
        assert len(own) == k
    for label in range(10):
        parts = [int((labels[rows] == label).sum()) for rows in shares]
        among = [n for n in parts if n]
        assert sum(among) == 120
        assert max(among) - min(among) <= 1


def test_labels_by_hand() -> None:
    labels = np.array([0, 0, 0, 1, 1, 1, 1, 1])
    shares = Labels(per_client=1).deal(labels, 3, 0)
    assert [labels[rows].tolist() for rows in shares] == [[0, 0], [1] * 5, [0]]


def test_labels_draws_the_others_equally_often() -> None:
    labels = equal_labels(5, 200)
    others = Counter(
        label for s in range(100) for label in held(labels, Labels(per_client=2).deal(labels, 5, s))[0] - {0}
    )
    assert sorted(others) == [1, 2, 3, 4]
    assert all(10 <= n <= 45 for n in others.values())


@pytest.mark.parametrize(
    "partition", [Labels(per_client=2), TwoClasses(), Windows(labels_per_group=2)], ids=named
)
def test_training_and_test_data_give_a_client_the_same_labels(partition: Partition) -> None:
    train, test = equal_labels(10, 100), np.repeat(np.arange(10), 31)
    assert held(train, deal(partition, train, 30, 5)) == held(test, deal(partition, test, 30, 5))


def test_labels_bad_input() -> None:
    with pytest.raises(DataError, match=r"9 clients are fewer than 10 labels.*ask for at least 10 clients"):
        Labels(per_client=2).deal(equal_labels(10, 10), 9, 0)
    with pytest.raises(DataError, match="per_client is 4, but there are 3 labels: lower it to at most 3"):
        Labels(per_client=4).deal(equal_labels(3, 10), 5, 0)
    with pytest.raises(DataError, match="label 1 has 1 samples for 2 clients that hold it: lower"):
        Labels(per_client=1).deal(np.array([0, 0, 0, 1]), 4, 0)


# noise: Gau(sigma)


def test_noise_scales_of_the_code_and_of_the_text() -> None:
    assert [Noise().noise_scale(i, 5) for i in range(5)] == pytest.approx([0, 0.025, 0.05, 0.075, 0.1])
    text = Noise(sigma=0.2, spread="variance")
    assert [text.noise_scale(i, 4) ** 2 for i in range(4)] == pytest.approx([0.05, 0.1, 0.15, 0.2])
    assert Noise().noise_scale(0, 1) == 0
    for i in (-1, 5):
        with pytest.raises(DataError, match=f"there is no client {i}: 5 clients are numbered from 0"):
            Noise().noise_scale(i, 5)


def test_noise_is_added_in_its_scale() -> None:
    x = np.full((200, 1, 10, 10), 0.5, np.float32)
    noise = Noise(sigma=0.3)
    last = noise.add_noise(x, 9, 10, seed=4)
    assert last.dtype == np.float32
    assert last.shape == x.shape
    assert float(last.mean()) == pytest.approx(0.5, abs=0.01)
    assert float(last.std()) == pytest.approx(0.3, abs=0.01)
    assert np.array_equal(last, noise.add_noise(x, 9, 10, seed=4))
    assert not np.array_equal(last, noise.add_noise(x, 9, 10, seed=5))
    assert not np.array_equal(last, noise.add_noise(x, 9, 10, seed=4, split="test"))
    assert np.array_equal(noise.add_noise(x, 0, 10, seed=4), x)
    assert (x == 0.5).all()


def test_test_data_stay_clean_where_asked() -> None:
    x = np.zeros((5, 3), np.float32)
    clean = Noise(noisy_test=False)
    assert not clean.add_noise(x, 2, 3, 0, split="test").any()
    assert clean.add_noise(x, 2, 3, 0).any()
    assert Noise().add_noise(x, 2, 3, 0, split="test").any()


# label_clusters


def test_clusters_have_about_equal_numbers_of_labels_and_share_proportions() -> None:
    labels = equal_labels(10, 3000)
    shares = LabelClusters().deal(labels, 6, 1)
    table = np.array([np.bincount(labels[rows], minlength=10) / 3000 for rows in shares]).T
    alike = np.abs(table[:, None] - table[None]).max(axis=2) < 0.05
    clusters = {tuple(np.flatnonzero(row).tolist()) for row in alike}
    assert sorted(len(c) for c in clusters) == [3, 3, 4]


def test_as_many_clusters_as_labels_is_a_dirichlet_a_label() -> None:
    labels = np.repeat(np.arange(3), 1000)
    partition = LabelClusters(clusters=3, alpha=0.4, minimum=0)
    drawn = np.array(
        [[np.bincount(labels[r], minlength=3) for r in partition.deal(labels, 5, s)] for s in range(150)]
    )
    assert drawn.sum(axis=1).tolist() == [[1000] * 3] * 150
    assert drawn.mean(axis=(0, 2)) / 1000 == pytest.approx([0.2] * 5, abs=0.05)
    assert drawn.std() / 1000 == pytest.approx((0.2 * 0.8 / 3) ** 0.5, abs=0.02)


def test_clusters_of_the_paper_leave_no_client_empty() -> None:
    labels = equal_labels(10, 6000)
    for seed in range(3):
        found = sizes(LabelClusters().deal(labels, 80, seed))
        assert sum(found) == 60_000
        assert min(found) >= 2


def test_clusters_bad_input(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DataError, match="2 labels do not fill 3 clusters: lower clusters to at most 2"):
        LabelClusters().deal(np.array([0, 4] * 20), 5, 0)
    with pytest.raises(DataError, match="20 samples cannot give 11 clients at least 2 each"):
        LabelClusters().deal(equal_labels(5, 4), 11, 0)
    monkeypatch.setattr(partitions, "REDRAWS", 50)
    with pytest.raises(DataError, match=r"50 draws .*raise alpha, or lower"):
        LabelClusters(alpha=0.01).deal(equal_labels(5, 4), 10, 0)


# pachinko


def test_pachinko_on_cifar_100() -> None:
    labels = equal_labels(100, 600)
    coarse = np.arange(100) % 20
    partition = Pachinko(coarse_of_fine=tuple(coarse.tolist()))
    shares = partition.deal(labels, 100, 0)
    assert sizes(shares) == [600] * 100
    assert len(np.unique(np.concatenate(shares))) == 60_000
    families = np.array([np.bincount(coarse[labels[rows]], minlength=20) for rows in shares[:30]]) / 600
    # Dir(0.4) over 20: the mean of the sum of squares is (0.4 + 1) / (20 * 0.4 + 1)
    assert (families**2).sum(axis=1).mean() == pytest.approx(1.4 / 9, abs=0.05)


def test_pachinko_fine_labels_are_nearly_equal_within_a_coarse_one() -> None:
    labels = equal_labels(5, 2000)
    partition = Pachinko(coarse_of_fine=(0,) * 5, beta=10, per_client=1000)
    parts = np.array([np.bincount(labels[partition.deal(labels, 1, s)[0]]) for s in range(60)]) / 1000
    assert parts.mean(axis=0) == pytest.approx([0.2] * 5, abs=0.03)
    assert parts.std() == pytest.approx((0.2 * 0.8 / 51 + 0.16 / 1000) ** 0.5, abs=0.01)


def test_pachinko_goes_on_with_the_labels_that_are_left() -> None:
    labels = np.array([0] * 3 + [1] * 7 + [3] * 30)  # label 2 has no sample, and its coarse label neither
    partition = Pachinko(coarse_of_fine=(0, 0, 5, 2), per_client=10)
    shares = partition.deal(labels, 4, 0)
    assert sorted(np.concatenate(shares).tolist()) == list(range(40))
    assert sizes(shares) == [10] * 4


def test_taking_at_once_equals_taking_one_by_one() -> None:
    stock, weights = np.array([2, 1, 9]), np.array([0.6, 0.3, 0.1])
    random = np.random.default_rng(0)

    def one_by_one() -> tuple[int, ...]:
        taken = np.zeros(3, np.int64)
        for _ in range(4):
            open_weights = weights * (taken < stock)
            taken[random.choice(3, p=open_weights / open_weights.sum())] += 1
        return tuple(taken.tolist())

    slow = Counter(one_by_one() for _ in range(6000))
    fast = Counter(tuple(pachinko._take(stock, weights, 4, random).tolist()) for _ in range(6000))
    assert slow.keys() == fast.keys()
    assert all(slow[k] / 6000 == pytest.approx(fast[k] / 6000, abs=0.035) for k in slow)


def test_pachinko_bad_input() -> None:
    labels = equal_labels(4, 10)
    with pytest.raises(DataError, match="coarse_of_fine is empty: give the coarse label of each fine"):
        Pachinko().deal(labels, 2, 0)
    with pytest.raises(DataError, match="coarse_of_fine has 3 entries and none for label 3"):
        Pachinko(coarse_of_fine=(0, 0, 1)).deal(labels, 2, 0)
    with pytest.raises(DataError, match="3 clients with 14 samples each need more than the 40"):
        Pachinko(coarse_of_fine=(0, 0, 1, 1), per_client=14).deal(labels, 3, 0)


# natural


def test_natural_by_hand() -> None:
    labels, writers = np.zeros(6, np.int64), np.array([9, 4, 9, 7, 4, 4])
    assert same(Natural().deal(labels, 3, 0, writers), [np.array([1, 4, 5]), np.array([3]), np.array([0, 2])])
    chosen = [Natural().deal(labels, 2, seed, writers) for seed in range(20)]
    assert {tuple(int(writers[rows[0]]) for rows in shares) for shares in chosen} == {(4, 7), (4, 9), (7, 9)}


def test_writers_may_be_clients_together() -> None:
    """Ten writers with two samples each, three to a client: three clients, nobody twice, one writer left out."""
    writers = np.repeat(np.arange(10), 2)
    shares = Natural(together=3).deal(np.zeros(20, np.int64), 3, 0, writers)
    own = [sorted(set(writers[rows].tolist())) for rows in shares]
    assert [len(rows) for rows in shares] == [6, 6, 6]
    assert [len(who) for who in own] == [3, 3, 3]
    assert len({one for who in own for one in who}) == 9
    assert own != [
        sorted(set(writers[r].tolist())) for r in Natural(together=3).deal(writers * 0, 3, 1, writers)
    ]
    with pytest.raises(DataError, match=r"4 clients of 3 each are more than the 10 writers .*at most 3"):
        Natural(together=3).deal(writers * 0, 4, 0, writers)


def test_natural_bad_input() -> None:
    labels = np.zeros(6, np.int64)
    with pytest.raises(DataError, match="do not say whom a sample comes from: choose another partition"):
        Natural().deal(labels, 3, 0)
    with pytest.raises(DataError, match=r"shape \[2\] for 6 samples"):
        Natural().deal(labels, 3, 0, np.array([1, 2]))
    with pytest.raises(DataError, match="3 clients are more than the 2 writers or subjects: lower clients"):
        Natural().deal(labels, 3, 0, np.array([1, 1, 1, 2, 2, 2]))


# two_classes


@settings(max_examples=25, deadline=None)
@given(
    classes=st.integers(2, 8),
    clients=st.integers(1, 20),
    per_client=st.integers(1, 8),
    seed=st.integers(0, 99),
)
def test_two_classes_are_held_equally_often(classes: int, clients: int, per_client: int, seed: int) -> None:
    per_client = min(per_client, classes)
    clients = max(clients, -(-classes // per_client))
    labels = equal_labels(classes, 20)
    own = held(labels, TwoClasses(per_client=per_client).deal(labels, clients, seed))
    assert all(len(o) == per_client for o in own)
    holders = Counter(label for o in own for label in o)
    assert max(holders.values()) - min(holders.values()) <= 1


def test_two_classes_of_fifty_clients() -> None:
    labels = equal_labels(10, 100)
    shares = TwoClasses().deal(labels, 50, 0)
    assert sizes(shares) == [20] * 50  # 10 holders a label, 10 samples each
    assert all(np.bincount(labels[rows], minlength=10).max() == 10 for rows in shares)
    assert len({frozenset(own) for own in held(labels, shares)}) > 15


def test_two_classes_leave_no_label_at_an_advantage() -> None:
    labels = equal_labels(10, 20)
    often = set()
    for seed in range(30):  # 14 places for 10 labels: four labels have two holders
        own = held(labels, TwoClasses().deal(labels, 7, seed))
        holders = Counter(label for o in own for label in o)
        assert sorted(holders.values()) == [1] * 6 + [2] * 4
        often |= {label for label, number in holders.items() if number == 2}
    assert often == set(range(10))


def test_two_classes_bad_input() -> None:
    with pytest.raises(DataError, match=r"4 clients with 2 labels each cannot hold all 10.*at least 5"):
        TwoClasses().deal(equal_labels(10, 10), 4, 0)
    with pytest.raises(DataError, match="per_client is 2, but there are 1 labels"):
        TwoClasses().deal(np.zeros(5, np.int64), 2, 0)


# windows: ModFL


@pytest.mark.parametrize(
    ("classes", "counts", "clients", "p", "a_client", "total_test"),
    [
        (9, (975, 325), 72 // 2, 3, (243, 81), 2916),
        (9, (975, 325), 72 // 2, 6, (240, 78), 2808),
        (9, (975, 325), 72 // 2, 9, (243, 81), 2916),
        (5, (200, 50), 60 // 3, 2, (50, 12), 240),
        (5, (200, 50), 60 // 3, 4, (48, 12), 240),
        (5, (200, 50), 60 // 3, 5, (50, 10), 200),
    ],
)
def test_windows_give_the_counts_of_modfl(
    classes: int, counts: tuple[int, int], clients: int, p: int, a_client: tuple[int, int], total_test: int
) -> None:
    partition = Windows(labels_per_group=p)
    train, test = (equal_labels(classes, each) for each in counts)
    training, testing = partition.deal(train, clients, 0), partition.deal(test, clients, 0)
    assert sizes(training) == [a_client[0]] * clients
    assert sizes(testing) == [a_client[1]] * clients
    assert sum(sizes(testing)) == total_test
    assert held(train, training) == held(test, testing)
    groups = Counter(partition.group(i, classes) for i in range(clients))
    assert groups == ({0: clients} if p == classes else dict.fromkeys(range(classes), 4))


def test_windows_by_hand() -> None:
    labels = equal_labels(4, 9)
    shares = Windows(labels_per_group=2).deal(labels, 4, 0)
    assert held(labels, shares) == [{0, 1}, {1, 2}, {2, 3}, {3, 0}]
    assert sizes(shares) == [8] * 4  # of 9 samples, each of two holders gets 4 and one is left out
    assert [Windows(labels_per_group=2).group(i, 4) for i in range(6)] == [0, 1, 2, 3, 0, 1]
    assert [Windows(labels_per_group=4).group(i, 4) for i in range(3)] == [0, 0, 0]


def test_windows_bad_input() -> None:
    with pytest.raises(DataError, match="labels_per_group is 5, but there are 4 labels"):
        Windows(labels_per_group=5).deal(equal_labels(4, 10), 8, 0)
    with pytest.raises(DataError, match="no client would hold label 3: ask for more clients"):
        Windows(labels_per_group=2).deal(equal_labels(5, 10), 2, 0)
    with pytest.raises(DataError, match="label 0 has 5 samples for 8 clients that hold it"):
        Windows(labels_per_group=4).deal(equal_labels(4, 5), 8, 0)


# Splitting one client's rows

SPLIT = {"train": 0.72, "test": 0.2, "public": 0.08}


def test_stratified_by_hand() -> None:
    labels = equal_labels(4, 25)
    rows = np.flatnonzero(labels != 2)
    parts = stratified(labels, rows, SPLIT, 0, "client-0")
    assert list(parts) == ["train", "test", "public"]
    assert np.array_equal(np.sort(np.concatenate(list(parts.values()))), rows)
    for name, each in {"train": 18, "test": 5, "public": 2}.items():
        assert np.bincount(labels[parts[name]], minlength=4).tolist() == [each, each, 0, each]
        assert (np.diff(parts[name]) > 0).all()


@settings(max_examples=40, deadline=None)
@given(
    labels=st.lists(st.integers(0, 6), min_size=1, max_size=60),
    train=st.floats(0, 1),
    test=st.floats(0, 1),
    seed=st.integers(0, 999),
)
def test_stratified_uses_every_row_once_and_in_proportion(
    labels: list[int], train: float, test: float, seed: int
) -> None:
    shares = {"train": train, "test": (1 - train) * test, "validation": (1 - train) * (1 - test)}
    y, rows = np.array(labels), np.arange(len(labels))
    parts = stratified(y, rows, shares, seed, 3)
    assert np.array_equal(np.sort(np.concatenate(list(parts.values()))), rows)
    all_counts = np.bincount(y)
    for name, part in parts.items():
        assert len(part) > 0 or shares[name] == 0 or len(rows) < 3
        counts = np.bincount(y[part], minlength=len(all_counts))
        expected = all_counts * len(part) / len(rows)
        assert np.abs(counts - expected).max() < 2
        if len(rows) * min(v for v in shares.values() if v > 0) >= 1:
            assert abs(len(part) - len(rows) * shares[name]) < 1


def test_stratified_sizes_are_right_where_labels_are_rare() -> None:
    labels = np.arange(50)  # one sample a label: rounding each label would leave no test data
    parts = [stratified(labels, labels, {"train": 0.8, "test": 0.2}, 0, i) for i in range(40)]
    assert {len(p["test"]) for p in parts} == {10}
    assert len(np.unique(np.concatenate([p["test"] for p in parts]))) == 50


def test_stratified_draws_a_rare_label_as_often_as_a_common_one() -> None:
    labels = np.array([0] + [1] * 9)
    tests = [stratified(labels, np.arange(10), {"train": 0.9, "test": 0.1}, 0, i)["test"] for i in range(600)]
    counts = np.bincount(np.concatenate(tests))
    assert counts.tolist() == pytest.approx([60] * 10, abs=30)


def test_stratified_depends_on_seed_and_purpose_and_not_on_the_order_of_rows() -> None:
    labels, rows = equal_labels(3, 30), np.arange(90)
    halves = {"train": 0.5, "test": 0.5}
    first = stratified(labels, rows, halves, 0, "a")["train"]
    assert np.array_equal(first, stratified(labels, rows[::-1], halves, 0, "a")["train"])
    assert not np.array_equal(first, stratified(labels, rows, halves, 1, "a")["train"])
    assert not np.array_equal(first, stratified(labels, rows, halves, 0, "b")["train"])


def test_stratified_small_clients_have_something_in_every_share_they_can() -> None:
    labels = np.zeros(3, np.int64)
    shares = {"train": 0.8, "validation": 0.0, "test": 0.2}
    found = [
        {name: len(part) for name, part in stratified(labels, np.arange(n), shares, 0, 0).items()}
        for n in range(4)
    ]
    assert [(f["train"], f["validation"], f["test"]) for f in found] == [
        (0, 0, 0),
        (1, 0, 0),
        (1, 0, 1),
        (2, 0, 1),
    ]


@pytest.mark.parametrize("wrong", [{}, {"train": 0.5}, {"train": 1.2, "test": -0.2}, {"train": float("nan")}])
def test_stratified_refuses_shares_that_do_not_add_up(wrong: dict[str, float]) -> None:
    with pytest.raises(DataError, match="must be at least 0 and sum to 1"):
        stratified(np.zeros(4, np.int64), np.arange(4), wrong, 0, "x")
