"""CKA against its formula, pair by pair; and the groups that it gives."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from intarsia.core import DataError
from intarsia.data import Examples
from intarsia.methods.pfedclub.cka import Similarity, block_features, compare, group_blocks, linear_cka
from intarsia.methods.pfedclub.decompose import Ref, decompose
from intarsia.methods.pfedclub.views import drawn
from intarsia.models import MLP, ClubCNN, MobileNetV3, ResNet

IMAGES = (3, 16, 16)


def slow(x, y):
    """||Y'X||^2 / (||X'X|| ||Y'Y||), centred, in plain numpy."""
    x, y = (np.asarray(z, dtype=np.float64) for z in (x, y))
    x, y = x - x.mean(0), y - y.mean(0)
    return np.sum((y.T @ x) ** 2) / np.sqrt(np.sum((x.T @ x) ** 2) * np.sum((y.T @ y) ** 2))


def chains_of():
    torch.manual_seed(0)
    models = {
        "a": ClubCNN(number=3, width=0.2).build(IMAGES, 5),
        "b": MobileNetV3(width=0.1, stride=1).build(IMAGES, 5),
        "c": ResNet(stem=4, channels=(4, 8), blocks=1).build(IMAGES, 5),
        "d": MLP(hidden=(7,)).build(IMAGES, 5),
    }
    return {key: decompose(model, IMAGES) for key, model in models.items()}


def test_by_hand():
    x = torch.tensor([[1.0], [0.0], [-1.0]])
    y = torch.tensor([[0.0], [1.0], [-1.0]])
    # X'Y = 1, X'X = Y'Y = 2: 1 / 4.
    assert linear_cka([x, y]) == pytest.approx(np.array([[1, 0.25], [0.25, 1]]))


def test_equals_the_formula_pair_by_pair():
    draw = torch.Generator().manual_seed(1)
    features = [
        torch.randn(20, p, generator=draw) * scale + 3 for p, scale in ((1, 1), (5, 1e-3), (40, 50), (7, 1))
    ]
    features.append(features[1] @ torch.randn(5, 9, generator=draw))
    values = linear_cka(features)
    wanted = np.array([[slow(x, y) for y in features] for x in features])
    assert np.abs(values - wanted).max() < 1e-6
    assert np.diag(values) == pytest.approx(1.0)


def test_does_not_change_with_scale_shift_and_rotation():
    draw = torch.Generator().manual_seed(2)
    x, y = torch.randn(12, 6, generator=draw), torch.randn(12, 4, generator=draw)
    turn = torch.linalg.qr(torch.randn(6, 6, generator=draw)).Q
    values = linear_cka([x, 3 * x @ turn - 8, y])
    assert values[0, 1] == pytest.approx(1.0, abs=1e-6)
    assert values[0, 2] == pytest.approx(values[1, 2], abs=1e-6)


def test_features_that_do_not_vary_align_with_nothing():
    values = linear_cka([torch.full((4, 3), 0.1), torch.zeros(4, 2), torch.eye(4)])
    assert values.tolist() == [[0, 0, 0], [0, 0, 0], [0, 0, pytest.approx(1)]]


def test_features_that_cannot_be_compared():
    with pytest.raises(DataError, match="not finite"):
        linear_cka([torch.tensor([[1.0], [float("nan")]])])


def test_similarity_is_that_of_inputs_plus_that_of_outputs():
    chains = chains_of()
    x = torch.rand(24, *IMAGES, generator=torch.Generator().manual_seed(3))
    found = compare(chains, {key: block_features(chain, x) for key, chain in chains.items()})
    assert found.blocks == tuple(Ref(key, i) for key, chain in chains.items() for i in range(len(chain)))
    ends = {}
    for key, chain in chains.items():
        values = x
        with torch.no_grad():
            for block in chain:
                before, values = values, block.module.eval()(values)
                pooled = [v.mean((2, 3)) if v.dim() == 4 else v for v in (before, values)]
                ends[Ref(key, block.index)] = [p.numpy() for p in pooled]
    wanted = [[slow(a[0], b[0]) + slow(a[1], b[1]) for b in ends.values()] for a in ends.values()]
    assert np.abs(found.values - wanted).max() < 1e-6


def test_features_are_those_of_evaluation():
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Dropout(0.9))
    (block,) = decompose(model, IMAGES)
    x = torch.rand(300, *IMAGES)
    with torch.no_grad():
        wanted = model.eval()(x).mean((2, 3))
    before, after = block_features((block,), x)
    assert torch.allclose(before, x.mean((2, 3)))
    assert torch.allclose(after, wanted, atol=1e-6)


def test_samples_are_drawn():
    def rows(most, seed, purpose):
        some = drawn(Examples(torch.arange(40.0), torch.arange(40)), most, seed, purpose)
        assert some.x.tolist() == some.y.tolist()
        return some.y.tolist()

    assert rows(40, 0, "one") == rows(0, 0, "one") == list(range(40))
    some = rows(10, 0, "one")
    assert len(some) == len(set(some)) == 10
    assert some == sorted(some)
    assert some == rows(10, 0, "one")
    assert some != rows(10, 1, "one")
    assert some != rows(10, 0, "other")


def blobs(sizes, noise=0.02):
    draw = np.random.default_rng(0)
    labels = np.repeat(np.arange(len(sizes)), sizes)
    values = 0.3 + 1.5 * (labels[:, None] == labels[None]) + noise * draw.random((len(labels),) * 2)
    values = (values + values.T) / 2
    np.fill_diagonal(values, 2.0)
    blocks = tuple(Ref("m", i) for i in range(len(labels)))
    return Similarity(blocks, values), labels.tolist()


def test_groups_of_blocks_that_are_alike():
    known, labels = blobs((3, 5, 2, 4))
    groups = group_blocks(known, 4, seed=0)
    assert list(groups.values()) == labels  # numbered as they appear
    assert groups == group_blocks(known, 4, seed=0)


@pytest.mark.parametrize("seed", range(5))
def test_no_group_is_empty(seed):
    draw = np.random.default_rng(seed)
    features = [torch.from_numpy(draw.normal(size=(9, 3))) for _ in range(12)]
    known = Similarity(tuple(Ref("m", i) for i in range(12)), 2 * linear_cka(features))
    for k in (1, 2, 5, 11, 12):
        assert set(group_blocks(known, k, seed).values()) == set(range(k))


def test_fewer_groups_where_fewer_blocks_differ():
    known, _ = blobs((3, 3), noise=0.0)
    same = np.where(known.values > 1, 2.0, 0.3)
    assert set(group_blocks(Similarity(known.blocks, same), 4, 0).values()) == {0, 1}


def test_there_are_no_more_groups_than_blocks():
    known, _ = blobs((2, 2))
    assert sorted(group_blocks(known, 5, 0).values()) == [0, 1, 2, 3]


def test_features_are_those_before_a_block_that_works_in_place():
    class Unit(nn.Linear):
        def forward(self, x):
            return super().forward(x.relu_())

    torch.manual_seed(0)
    first = nn.Linear(5, 4)
    chain, x = decompose(nn.Sequential(first, Unit(4, 3)), (5,)), torch.randn(6, 5)
    with torch.no_grad():
        assert torch.equal(block_features(chain, x)[1], first(x))
