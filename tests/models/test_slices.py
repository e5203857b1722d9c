"""Narrower copies of networks, scalers and static norms, by hand."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import intarsia
from intarsia.models import MODELS, ClubCNN, add_scalers, fit_statistics, make_static, narrow, set_ratios
from intarsia.models.slices import fewer, last_weights


def test_a_narrower_network_holds_the_leading_weights():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 4), nn.Linear(4, 2))
    small = narrow(model, 0.5)
    shapes = {name: list(t.shape) for name, t in small.state_dict().items()}
    assert shapes["0.weight"] == [3, 3]
    assert shapes["1.running_var"] == [3]
    assert shapes["3.weight"] == [2, 3]
    assert shapes["4.weight"] == [2, 2]
    assert shapes["4.bias"] == [2]
    full = model.state_dict()
    for name, tensor in small.state_dict().items():
        assert torch.equal(tensor, full[name][tuple(slice(0, n) for n in tensor.shape)])
    assert [(layer.in_features, layer.out_features) for layer in (small[0], small[3], small[4])] == [
        (3, 3),
        (3, 2),
        (2, 2),
    ]
    assert model[0].weight.shape == (5, 3)


def test_behind_a_flattened_map_the_leading_channels_are_kept():
    """The values of a narrow network are those of the wide one whose other channels are cut off."""
    torch.manual_seed(0)
    wide = nn.Sequential(nn.Conv2d(1, 3, 3), nn.Flatten(), nn.Linear(3 * 4, 5), nn.Linear(5, 2))
    small = narrow(wide, 0.5)
    assert small[2].weight.shape == (3, 2 * 4)
    x = torch.randn(2, 1, 4, 4)
    with torch.no_grad():
        wide[0].weight[2:], wide[0].bias[2:] = 0, 0
        wide[3].weight[:, 3:] = 0
    assert torch.allclose(small(x), wide(x), atol=1e-6)


@pytest.mark.parametrize(
    "name", ["mlp", "cnn", "club_cnn", "resnet", "mobilenet_v1", "mobilenet_v2", "modular_cnn"]
)
@pytest.mark.parametrize("width", [0.5, 0.3])
def test_the_networks_that_can_be_narrowed_run(name, width):
    options = {"number": 4} if name == "club_cnn" else {}
    model = MODELS[name](**options).build((3, 32, 32), 7)
    small = narrow(model, width).eval()
    assert small(torch.zeros(2, 3, 32, 32)).shape == (2, 7)
    assert 0 < sum(p.numel() for p in small.parameters()) < sum(p.numel() for p in model.parameters())
    for key, tensor in small.state_dict().items():
        assert torch.equal(tensor, model.state_dict()[key][tuple(slice(0, n) for n in tensor.shape)])


def test_a_whole_width_is_the_same_network_and_widths_agree_with_the_setting():
    model = ClubCNN(number=2).build((3, 16, 16), 4)
    same = narrow(model, 1.0).state_dict()
    assert all(torch.equal(same[name], t) for name, t in model.state_dict().items())
    named = ClubCNN(number=2, width=0.25).build((3, 16, 16), 4).state_dict()
    assert {n: t.shape for n, t in named.items()} == {
        n: t.shape for n, t in narrow(model, 0.25).state_dict().items()
    }


def test_units_are_rounded_up():
    assert [fewer(10, w) for w in (1.0, 0.5, 0.25, 0.1, 0.01)] == [10, 5, 3, 1, 1]
    assert fewer(30, 0.1) == 3


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (nn.Linear(3, 2), "no hidden layer"),
        (
            nn.Sequential(nn.Embedding(3, 4), nn.Linear(4, 2)),
            r"'0' is Embedding.*models of their widths by name",
        ),
        (nn.Sequential(nn.Conv2d(4, 4, 1, groups=2), nn.Conv2d(4, 2, 1)), "'0' is Conv2d.*groups=2"),
    ],
)
def test_what_cannot_be_narrowed_says_so(model, message):
    with pytest.raises(intarsia.IntarsiaError, match=message):
        narrow(model, 0.5)


def test_the_weights_of_the_last_layer_are_found():
    assert last_weights(nn.Sequential(nn.Linear(2, 4), nn.Linear(4, 3), nn.ReLU())) == ["1.weight", "1.bias"]
    assert last_weights(nn.Conv2d(1, 3, 1, bias=False)) == ["weight"]
    assert last_weights(nn.Sequential(nn.BatchNorm1d(3))) == []


def test_a_hidden_layer_is_scaled_in_training_and_after():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 4), nn.Linear(4, 3))
    x = torch.tensor([[1.0, 2.0]])
    hidden = x @ model[0].weight.T + model[0].bias
    plain = model(x)
    add_scalers(model)
    assert torch.equal(model(x), plain)
    set_ratios(model, {"0": 0.25})
    expected = (4 * hidden) @ model[1].weight.T + model[1].bias
    assert torch.allclose(model.train()(x), expected)
    assert torch.allclose(model.eval()(x), expected)
    set_ratios(model, {})
    assert torch.equal(model(x), plain)


def test_statistics_are_taken_on_the_scale_of_predictions():
    model = nn.Sequential(nn.Linear(1, 1, bias=False), nn.BatchNorm1d(1), nn.Linear(1, 1))
    nn.init.ones_(model[0].weight)
    add_scalers(model)
    make_static(model)
    set_ratios(model, {"0": 0.5})
    fit_statistics(model, [torch.tensor([[1.0], [3.0]])])
    assert model[1].running_mean.item() == 2 * 2
    assert model[1].running_var.item() == 2 * 2**2


def test_static_norms_go_by_the_batch_and_take_statistics_when_asked():
    model = nn.Sequential(nn.BatchNorm1d(1), nn.Dropout(0.9))
    make_static(model)
    batches = [torch.tensor([[1.0], [3.0]]), torch.tensor([[4.0], [10.0]]), torch.tensor([[99.0]])]
    model.train()
    model(batches[0])
    assert model[0].running_mean.item() == 0
    assert model[0].running_var.item() == 1
    fit_statistics(model, batches)
    assert model[0].running_mean.item() == (2 + 7) / 2
    assert model[0].running_var.item() == (2 + 18) / 2
    assert not model[0].training
    model.train()
    model(batches[0])
    assert model[0].running_mean.item() == 4.5
