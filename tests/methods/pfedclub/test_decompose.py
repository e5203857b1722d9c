"""Functional blocks: what belongs together, shapes, and chains that are the model itself."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from intarsia.core import CutError
from intarsia.methods.pfedclub.assembly import Seams
from intarsia.methods.pfedclub.decompose import Cost, Ref, block_of, decompose, total
from intarsia.models import CNN, MLP, CharLSTM, ClubCNN, MobileNetV1, MobileNetV2, MobileNetV3, ResNet

IMAGES = (3, 16, 16)
ARCHITECTURES = [
    *(ClubCNN(number=n, width=0.1) for n in (1, 2, 3, 4)),
    MobileNetV1(width=0.1, stride=1),
    MobileNetV2(width=0.1, stride=1),
    MobileNetV3(width=0.1, stride=1),
    MobileNetV3(size="large", width=0.1, stride=1),
    ResNet(stem=4, channels=(4, 8), blocks=2),
    CNN(channels=(4, 4), hidden=8),
    MLP(hidden=(8,)),
]


@pytest.mark.parametrize("architecture", ARCHITECTURES, ids=lambda a: a.name)
def test_the_chain_is_the_model(architecture):
    torch.manual_seed(0)
    model = architecture.build(IMAGES, 5)
    model.train()(torch.rand(8, *IMAGES))  # batch norms that have seen something
    model.eval()
    chain = decompose(model, IMAGES)
    x = torch.rand(4, *IMAGES)
    values = x
    for block in chain:
        assert tuple(values.shape[1:]) == block.takes
        values = block.module(values)
        assert tuple(values.shape[1:]) == block.gives
    assert torch.equal(values, model(x))
    assert total(b.cost for b in chain).parameters == sum(p.numel() for p in model.parameters())
    assert [b.index for b in chain] == list(range(len(chain)))
    own = {id(p) for p in model.parameters()}
    assert {id(p) for b in chain for p in b.module.parameters()} == own


def kinds(chain):
    return [[type(layer).__name__ for layer in block.module] for block in chain]


def test_what_belongs_to_a_block():
    chain = decompose(ClubCNN(number=4, width=0.1).build(IMAGES, 5), IMAGES)
    assert kinds(chain)[:4] == [
        ["Conv2d", "BatchNorm2d", "ReLU"],
        ["Conv2d", "MaxPool2d", "ReLU"],
        ["Conv2d", "BatchNorm2d", "ReLU"],
        ["Conv2d", "MaxPool2d", "ReLU", "Dropout"],
    ]
    assert kinds(chain)[6:] == [
        ["Flatten", "Linear", "ReLU", "Dropout"],
        ["Linear", "ReLU"],
        ["Linear", "ReLU"],
        ["Linear"],
    ]
    assert [b.kind for b in chain] == ["conv"] * 6 + ["fc"] * 4
    assert (chain[6].takes, chain[6].entry) == ((26, 2, 2), (104,))


def test_units_with_shortcuts_stay_whole():
    chain = decompose(MobileNetV2(width=0.1, stride=1).build(IMAGES, 5), IMAGES)
    assert (
        kinds(chain)[0]
        == ["Symmetric", "ZeroPad2d", "Conv2d", "BatchNorm2d", "ReLU6"][:1] + kinds(chain)[0][1:]
    )
    assert kinds(chain)[1:18] == [["InvertedResidual"]] * 17
    assert kinds(chain)[18:] == [
        ["Conv2d", "BatchNorm2d", "ReLU6", "AdaptiveAvgPool2d"],
        ["Flatten", "Linear"],
    ]


def test_fits():
    def fits(block, shape):
        return Seams().stitch(block, shape) is None

    chain = decompose(ClubCNN(width=0.1).build(IMAGES, 5), IMAGES)
    conv, dense = chain[1], chain[2]
    assert fits(conv, (1, 8, 8))
    assert not fits(conv, (1, 4, 4))
    assert not fits(conv, (64,))
    assert dense.takes == (6, 4, 4)
    assert fits(dense, (6, 4, 4))
    assert fits(dense, (96,))
    assert not fits(dense, (96, 1, 1))
    assert not fits(dense, (6,))


def test_multiplications():
    chain = decompose(ClubCNN(width=0.1).build(IMAGES, 5), IMAGES)
    # 5x5 convolutions of 3 -> 1 on 16x16 and 1 -> 6 on 8x8; 96 -> 5; 5 -> 5.
    assert [b.cost.macs for b in chain] == [25 * 3 * 256, 25 * 6 * 64, 96 * 5, 25]
    assert [b.cost.activations for b in chain] == [256, 6 * 64, 5, 5]
    grouped = decompose(nn.Sequential(nn.Conv2d(4, 8, 3, padding=1, groups=4)), (4, 5, 5))
    assert grouped[0].cost.macs == 9 * 8 * 25


def test_tensors_stay_as_they_were_and_blocks_are_in_evaluation_mode():
    model = ClubCNN(number=4, width=0.1).build(IMAGES, 5).train()
    before = {n: t.clone() for n, t in model.state_dict().items()}
    chain = decompose(model, IMAGES)
    assert not any(m.training for block in chain for m in block.module.modules())
    assert all(torch.equal(before[n], t) for n, t in model.state_dict().items())


def test_costs_add_up():
    assert total([]) == Cost()
    assert total([Cost(1, 2, 3), Cost(10, 20, 30)]) == Cost(11, 22, 33)


def test_a_layer_that_stands_at_two_places():
    relu = nn.ReLU()
    model = nn.Sequential(nn.Conv2d(3, 4, 3), relu, nn.Conv2d(4, 4, 3), relu)
    assert kinds(decompose(model, IMAGES)) == [["Conv2d", "ReLU"]] * 2


class Own(nn.Module):
    """A model as users write it: its layers stand in another order than they run in."""

    def __init__(self):
        super().__init__()
        self.head = nn.Sequential(nn.Flatten(), nn.Linear(4 * 14 * 14, 5))
        self.features = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU())

    def forward(self, x):
        return self.head(self.features(x))


def test_own_models_decompose_as_their_forward_runs():
    chain = decompose(Own(), IMAGES)
    assert [(b.name, b.kind) for b in chain] == [("features.0", "conv"), ("head.1", "fc")]


def test_models_that_cannot_be_cut_say_why():
    with pytest.raises(CutError, match=r"Own cannot.*'head.1' does not turn \[4, 6, 6\] into.*nn.Sequential"):
        decompose(Own(), (3, 8, 8))
    with pytest.raises(CutError, match="'lstm' is recurrent"):
        decompose(CharLSTM().build((10,), 5), (10,))
    with pytest.raises(CutError, match="no layer with weights"):
        decompose(nn.Sequential(nn.ReLU()), IMAGES)
    with pytest.raises(CutError, match=r"takes \[3, 9\] and gives \[4, 7\], neither maps nor vectors"):
        decompose(nn.Sequential(nn.Conv1d(3, 4, 3)), (3, 9))


class Branched(nn.Module):
    """Goes this way or that, by its input."""

    def __init__(self):
        super().__init__()
        self.one = nn.Linear(4, 4)

    def forward(self, x):
        return self.one(x) if x.sum() > 0 else x


def test_a_forward_that_cannot_be_followed_says_so():
    with pytest.raises(CutError, match=r"Branched cannot be cut.*its forward cannot be followed"):
        decompose(Branched(), (4,))


def test_a_forward_that_does_more_is_noticed():
    class Doubled(nn.Module):
        def __init__(self):
            super().__init__()
            self.one = nn.Linear(4, 4)
            self.two = nn.Linear(4, 4)

        def forward(self, x):
            return x + self.two(self.one(x))

    with pytest.raises(CutError, match=r"Doubled cannot be cut.*does more than run layers in order: \'add"):
        decompose(Doubled(), (4,))


def test_weights_outside_the_layers_are_refused_even_if_they_change_nothing_yet():
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.ones(3))
            self.one = nn.Linear(4, 3)

        def forward(self, x):
            return self.scale * self.one(x)

    with pytest.raises(CutError, match=r"Scaled cannot be cut.*does more than run layers in order: 'scale'"):
        decompose(Scaled(), (4,))


def test_a_layer_that_gives_more_than_one_tensor_is_refused():
    class Two(nn.Linear):
        def forward(self, x):
            return super().forward(x), x

    with pytest.raises(CutError, match=r"'0' does not turn \[4\] into one tensor"):
        decompose(nn.Sequential(Two(4, 4)), (4,))


def test_layers_may_work_in_place():
    class Centred(nn.Linear):
        def forward(self, x):
            return super().forward(x.sub_(0.5))

    torch.manual_seed(0)
    chain = decompose(nn.Sequential(Centred(4, 3), nn.ReLU(inplace=True)), (4,))
    assert [block.gives for block in chain] == [(3,)]


def test_references():
    chains = {
        "a": decompose(MLP(hidden=(3,)).build((4,), 2), (4,)),
        "b": decompose(MLP(hidden=()).build((4,), 2), (4,)),
    }
    assert block_of(chains, Ref("a", 1)) is chains["a"][1]
    for wrong in (Ref("a", 2), Ref("a", -1), Ref("c", 0)):
        with pytest.raises(CutError, match="there is no block"):
            block_of(chains, wrong)
