"""Stitches and assemblies: only where shapes differ, frozen blocks, costs, and the way to another machine."""

from __future__ import annotations

import json

import pytest
import safetensors.torch
import torch
from torch import nn

from intarsia.core import CutError, WireError
from intarsia.methods.pfedclub.assembly import Assembly, Stitch, assemble, own_model, rebuild
from intarsia.methods.pfedclub.decompose import Ref, decompose, total
from intarsia.models import MODELS, ClubCNN, MobileNetV3, Spec

IMAGES, OUTPUTS = (3, 16, 16), 5
SPECS = {
    "a": Spec(ClubCNN(number=2, width=0.1), IMAGES, OUTPUTS),
    "b": Spec(ClubCNN(number=4, width=0.1), IMAGES, OUTPUTS),
    "c": Spec(MobileNetV3(width=0.1, stride=1), IMAGES, OUTPUTS),
}


@pytest.fixture(scope="module")
def chains():
    models = {key: spec.build(seed) for seed, (key, spec) in enumerate(SPECS.items())}
    for model in models.values():
        model.train()(torch.rand(8, *IMAGES, generator=torch.Generator().manual_seed(0)))
    return {key: decompose(model, IMAGES) for key, model in models.items()}


def made(chains, *blocks):
    return assemble([Ref(*block) for block in blocks], chains, IMAGES, OUTPUTS, len(blocks))


@pytest.mark.parametrize(
    ("takes", "gives", "layers", "parameters", "macs"),
    [
        ((4, 8, 8), (6, 8, 8), ["Conv2d", "ReLU"], 30, 4 * 6 * 64),
        ((4, 8, 8), (6, 2, 3), ["AdaptiveAvgPool2d", "Conv2d", "ReLU"], 30, 4 * 6 * 6),
        ((4, 2, 2), (4, 8, 8), ["Conv2d", "AdaptiveAvgPool2d", "ReLU"], 20, 4 * 4 * 4),
        ((4, 8, 8), (10,), ["AdaptiveAvgPool2d", "Flatten", "Linear", "ReLU"], 50, 40),
        ((7,), (10,), ["Linear", "ReLU"], 80, 70),
        ((7,), (10, 3, 2), ["Linear", "ReLU", "Unflatten", "Upsample"], 80, 70),
    ],
)
def test_stitches(takes, gives, layers, parameters, macs):
    stitch = Stitch(takes, gives)
    module = stitch.build()
    assert [type(layer).__name__ for layer in module] == layers
    assert sum(p.numel() for p in module.parameters()) == stitch.cost.parameters == parameters
    assert stitch.cost.macs == macs
    y = module(torch.randn(9, *takes))
    assert tuple(y.shape[1:]) == gives
    assert y.min() == 0  # ReLU


def test_heads_do_not_rectify():
    assert [type(m).__name__ for m in Stitch((4, 8, 8), (3,), head=True).build()] == [
        "AdaptiveAvgPool2d",
        "Flatten",
        "Linear",
    ]
    assert [type(m).__name__ for m in Stitch((4,), (3,), head=True).build()] == ["Linear"]


def test_a_stitch_by_hand():
    module = Stitch((2, 2, 2), (1, 1, 1)).build()
    with torch.no_grad():
        module[1].weight.copy_(torch.tensor([2.0, -1.0]).view(1, 2, 1, 1))
        module[1].bias.fill_(0.5)
    x = torch.tensor([[[1.0, 2.0], [3.0, 4.0]], [[1.0, 1.0], [1.0, 1.0]]])[None]
    assert module(x).item() == 2 * 2.5 - 1 + 0.5
    wide = Stitch((1,), (2, 1, 2)).build()
    with torch.no_grad():
        wide[0].weight.copy_(torch.tensor([[3.0], [-3.0]]))
        wide[0].bias.zero_()
    assert wide(torch.tensor([[2.0]])).tolist() == [[[[6.0, 6.0]], [[0.0, 0.0]]]]


def test_both_orders_of_pooling_and_convolution_are_one():
    module = Stitch((3, 2, 3), (5, 7, 4)).build()
    x = torch.randn(4, 3, 2, 3)
    assert torch.allclose(module(x), torch.relu(module[0](module[1](x))), atol=1e-6)


def test_stitches_stand_only_where_shapes_differ(chains):
    # a: conv 3-2, 2-3, 3-6 at 16, 8, 4; FC 96-13; head 13-5. b's conv2 is 3 -> 6 at 16 -> 8.
    one = made(chains, ("a", 0), ("b", 2), ("a", 3), ("b", 9))
    assert chains["a"][0].gives == (2, 8, 8)
    assert chains["b"][2].takes == (6, 8, 8)
    assert chains["b"][2].gives == (13, 8, 8)
    assert one.stitches == (
        None,
        Stitch((2, 8, 8), (6, 8, 8)),
        Stitch((13, 8, 8), (96,)),
        Stitch((13,), (26,)),
        None,
    )
    assert one.frozen == 1
    assert own_model("c", chains).stitches == (None,) * (len(chains["c"]) + 1)
    assert made(chains, ("a", 3), ("a", 2)).stitches == (
        Stitch((3, 16, 16), (96,)),
        Stitch((13,), (3, 4, 4)),
        Stitch((6, 4, 4), (5,), head=True),
    )
    assert made(chains, ("a", 0), ("a", 1), ("a", 2), ("a", 3)).stitches[-1] == Stitch((13,), (5,), head=True)


def test_costs_are_those_of_the_network(chains):
    one = made(chains, ("b", 1), ("a", 2), ("b", 1), ("a", 4))
    model = one.build(chains, seed=0)
    parts = [*model.blocks, model.stitches]  # one block stands at two places
    assert one.cost.parameters == sum(p.numel() for part in parts for p in part.parameters())
    blocks = [chains["b"][1], chains["a"][2], chains["b"][1], chains["a"][4]]
    assert one.cost.macs == sum(b.cost.macs for b in blocks) + sum(s.cost.macs for s in one.stitches if s)
    assert own_model("a", chains).cost == total(block.cost for block in chains["a"])


def test_the_own_model_is_itself(chains):
    x = torch.rand(3, *IMAGES)
    one = own_model("c", chains)
    assert one.is_own("c", chains)
    assert not one.is_own("a", chains)
    assert one.frozen == len(one.blocks)
    for block in chains["c"]:
        block.module.eval()
    values = x
    for block in chains["c"]:
        values = block.module(values)
    assert torch.equal(one.build(chains, 0)(x), values)


def test_blocks_are_frozen_and_stitches_are_not(chains):
    one = made(chains, ("b", 0), ("c", 3), ("b", 4), ("a", 3))
    model = one.build(chains, seed=1)
    norms = [m for m in model.modules() if isinstance(m, nn.BatchNorm2d)]
    assert norms
    assert not any(m.training for m in norms)
    assert {n.split(".")[0] for n, p in model.named_parameters() if p.requires_grad} == {"stitches"}
    before = {n: t.clone() for n, t in model.state_dict().items()}
    optimiser = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], 0.1)
    model(torch.rand(4, *IMAGES)).square().sum().backward()
    optimiser.step()
    changed = {n for n, t in model.state_dict().items() if not torch.equal(before[n], t)}
    assert changed
    assert all(n.startswith("stitches.") for n in changed)
    assert model.blocks[0] is chains["b"][0].module


def test_stitches_are_drawn_from_the_seed(chains):
    one = made(chains, ("b", 0), ("c", 3))
    first, again, other = (next(one.build(chains, seed).stitches.parameters()) for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    state = torch.get_rng_state()
    one.build(chains, 5)
    assert torch.equal(state, torch.get_rng_state())


def test_the_way_to_another_machine(chains):
    one = made(chains, ("b", 1), ("c", 4), ("b", 1), ("a", 3), ("b", 9))
    model = one.build(chains, seed=3).eval()
    plan = one.blueprint(SPECS)
    text, file = (
        json.dumps(plan),
        safetensors.torch.save({n: t.clone() for n, t in model.state_dict().items()}),
    )
    assert '"a"' not in text  # no names of owners
    rebuilt, specs = rebuild(json.loads(text), safetensors.torch.load(file), MODELS)
    assert specs == [SPECS["b"], SPECS["c"], SPECS["a"]]
    x = torch.rand(3, *IMAGES)
    assert torch.equal(rebuilt(x), model(x))


def test_blocks_of_two_models_of_one_architecture_stay_apart():
    models = {key: SPECS["a"].build(seed) for seed, key in enumerate("xy")}
    chains = {key: decompose(model, IMAGES) for key, model in models.items()}
    one = made(chains, ("x", 0), ("x", 1), ("y", 1), ("x", 2), ("x", 3), ("y", 3), ("y", 4))
    model = one.build(chains, seed=3).eval()
    rebuilt, _ = rebuild(one.blueprint(dict.fromkeys("xy", SPECS["a"])), model.state_dict(), MODELS)
    x = torch.rand(3, *IMAGES)
    assert torch.equal(rebuilt(x), model(x))


def test_what_cannot_be_built_says_why(chains):
    one = made(chains, ("a", 0), ("b", 2))
    plan, tensors = one.blueprint(SPECS), one.build(chains, 0).state_dict()
    assert rebuild(plan, tensors, MODELS)
    for wrong, why in (
        ({**plan, "stitches": plan["stitches"][:-1]}, "do not follow from its blocks"),
        ({**plan, "stitches": [None, None, None]}, "do not follow from its blocks"),
        ({"blocks": []}, "architectures"),
        ({**plan, "architectures": []}, "index"),
        ({**plan, "blocks": [[0, 0], [1]]}, "unpack"),
        ({**plan, "blocks": 3}, "not iterable"),
    ):
        with pytest.raises(WireError, match=f"this teacher cannot be built: .*{why}"):
            rebuild(wrong, tensors, MODELS)
    with pytest.raises(WireError, match=r"Missing key.*stitches\.1"):
        rebuild(plan, {k: v for k, v in tensors.items() if not k.startswith("stitches.1")}, MODELS)
    with pytest.raises(CutError, match="no block 77"):
        rebuild({**plan, "blocks": [[0, 77], [1, 2]]}, tensors, MODELS)


def test_an_assembly_is_plain_data(chains):
    one = made(chains, ("a", 0), ("b", 2))
    assert one == Assembly(one.blocks, one.stitches, 2, one.cost)
    assert hash(one) == hash(made(chains, ("a", 0), ("b", 2)))
