"""The model zoos: published sizes, layers as the papers list them, and who gets what."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from torch import nn

import intarsia
from intarsia.data import ZOOS, deal_zoo
from intarsia.models import NAMED, ClubCNN, MobileNetV1, MobileNetV3
from intarsia.models.architectures.mobilenet_v3 import Attention, Bottleneck, Row

IMAGES = (3, 32, 32)


def count(model, *without):
    return sum(p.numel() for n, p in model.named_parameters() if n.split(".")[0] not in without)


@pytest.mark.parametrize(
    ("architecture", "features", "whole"),
    [
        (MobileNetV1(), 3_206_976, 4_231_976),
        (MobileNetV3(size="small"), 927_008, 2_542_856),
        (MobileNetV3(size="large"), 2_971_952, 5_483_032),
    ],
)
def test_published_sizes(architecture, features, whole):
    model = architecture.build(IMAGES, 1000)
    assert count(model, "hidden", "head") == features
    assert count(model) == whole


def test_attention_squeezes_to_a_quarter_rounded_to_eights():
    sizes = [
        m.weigh[1].out_channels
        for m in MobileNetV3(size="large").build(IMAGES, 2).modules()
        if isinstance(m, Attention)
    ]
    assert sizes == [24, 32, 32, 120, 168, 168, 240, 240]


def test_attention_weighs_channels():
    layer = Attention(16)
    with torch.no_grad():
        for conv in (layer.weigh[1], layer.weigh[3]):
            conv.weight.zero_()
            conv.bias.zero_()
        layer.weigh[3].bias[0] = 1.5
    x = torch.ones(1, 16, 2, 2)
    # The hard sigmoid is x / 6 + 1/2: 0.75 for 1.5, 0.5 for 0.
    assert layer(x)[0, :2, 0, 0].tolist() == [0.75, 0.5]


@pytest.mark.parametrize(
    ("number", "parameters", "convolutions", "linear"),
    [
        (1, 222_184, [(3, 10, 5), (10, 64, 5)], [(4096, 50), (50, 10)]),
        (2, 591_018, [(3, 16, 5), (16, 32, 5), (32, 64, 5)], [(4096, 128), (128, 10)]),
        (
            3,
            2_510_178,
            [(3, 6, 5), (6, 16, 5), (16, 32, 5), (32, 64, 5), (64, 128, 5)],
            [(2048, 1024), (1024, 128), (128, 64), (64, 10)],
        ),
        (
            4,
            6_244_618,
            [(3, 32, 5), (32, 64, 3), (64, 128, 3), (128, 128, 5), (128, 256, 3), (256, 256, 3)],
            [(4096, 1024), (1024, 512), (512, 256), (256, 10)],
        ),
    ],
)
def test_the_four_networks(number, parameters, convolutions, linear):
    model = ClubCNN(number=number).build(IMAGES, 10)
    assert count(model) == parameters
    kinds = [(type(m), m) for m in model]
    assert [
        (m.in_channels, m.out_channels, m.kernel_size[0]) for k, m in kinds if k is nn.Conv2d
    ] == convolutions
    assert [(m.in_features, m.out_features) for k, m in kinds if k is nn.Linear] == linear
    assert model.eval()(torch.rand(2, *IMAGES)).shape == (2, 10)


def test_the_fourth_network_layer_by_layer():
    names = [type(layer).__name__ for layer in ClubCNN(number=4).build(IMAGES, 10)]
    assert names == [
        *("Conv2d", "BatchNorm2d", "ReLU"),
        *("Conv2d", "MaxPool2d", "ReLU"),
        *("Conv2d", "BatchNorm2d", "ReLU"),
        *("Conv2d", "MaxPool2d", "ReLU", "Dropout"),
        *("Conv2d", "BatchNorm2d", "ReLU"),
        *("Conv2d", "MaxPool2d", "ReLU"),
        *("Flatten", "Linear", "ReLU", "Dropout"),
        *("Linear", "ReLU", "Linear", "ReLU", "Linear"),
    ]


def test_narrow_networks_are_leading_slices_in_shape():
    model = ClubCNN(number=4, width=0.25).build(IMAGES, 10)
    assert [m.out_channels for m in model if isinstance(m, nn.Conv2d)] == [8, 16, 32, 32, 64, 64]
    assert [m.out_features for m in model if isinstance(m, nn.Linear)] == [256, 128, 64, 10]


@pytest.mark.parametrize("architecture", [ClubCNN(number=3), MobileNetV1(), MobileNetV3()])
def test_small_images_are_refused(architecture):
    with pytest.raises(intarsia.IntarsiaError, match=rf"model '{architecture.name}'.* at least"):
        architecture.build((3, 4, 4), 10)


def test_zoos_hold_what_the_paper_says():
    counts = {name: list(animals.values()) for name, animals in ZOOS.items()}
    assert counts == {"I": [8, 7, 7, 7, 7, 7, 7], "II": [16, 17, 17], "III": [12, 12, 12, 14]}
    assert list(ZOOS["I"]) == list(NAMED)
    assert {*ZOOS["II"], *ZOOS["III"]} == set(ZOOS["I"])
    names = [a.name + (str(a.number) if isinstance(a, ClubCNN) else "") for a in NAMED.values()]
    assert names == [*(f"club_cnn{i}" for i in range(1, 5)), *(f"mobilenet_v{i}" for i in range(1, 4))]


def test_dealing_a_zoo():
    dealt = deal_zoo("III", 50, seed=3)
    assert Counter(dealt) == {"cnn1": 12, "cnn2": 12, "cnn3": 12, "cnn4": 14}
    assert dealt == deal_zoo("III", 50, seed=3)
    assert dealt != deal_zoo("III", 50, seed=4)
    # Ten clients: shares of 2.4, 2.4, 2.4, 2.8; the last gets one more, then the first.
    assert Counter(deal_zoo("III", 10, seed=0)) == {"cnn1": 3, "cnn2": 2, "cnn3": 2, "cnn4": 3}
    assert Counter(deal_zoo("I", 7, seed=0)) == dict.fromkeys(ZOOS["I"], 1)
    with pytest.raises(intarsia.IntarsiaError, match="no model zoo 'V'"):
        deal_zoo("V", 3, seed=0)


def test_bottlenecks_add_their_input_where_shapes_allow():
    x = torch.rand(2, 8, 4, 4)
    for row, kept in (
        (Row(3, 16, 8, True, True), True),
        (Row(3, 16, 8, True, True, 2), False),
        (Row(3, 16, 12, False, False), False),
    ):
        block = Bottleneck(8, row, 0.1).eval()
        with torch.no_grad():
            block.way[
                -2
            ].weight.zero_()  # the projection gives nothing: what is left is the input, or nothing
            y = block(x)
        assert torch.equal(y, x) if kept else not y.any()
        assert any(isinstance(m, nn.Hardswish) for m in block.modules()) == row.swish
