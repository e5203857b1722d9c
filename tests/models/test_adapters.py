"""Adapters: counts, equality after folding, what is frozen."""

from __future__ import annotations

import io

import pytest
import torch
from torch import nn

import intarsia
from intarsia.models import ResNet, add_adapters, has_adapters, remove_adapters, resnet26
from intarsia.models.adapters import LowRankAdapter


def parameters(model):
    return sum(weight.numel() for weight in model.parameters())


def mebibytes_saved(state):
    file = io.BytesIO()
    torch.save(state, file)
    return len(file.getvalue()) / 2**20


def travelling(model):
    frozen = {name for name, weight in model.named_parameters() if not weight.requires_grad}
    return {name: tensor for name, tensor in model.state_dict().items() if name not in frozen}


def test_resnet26_has_the_published_counts():
    base = resnet26()
    adapted = add_adapters(base)
    assert parameters(base) == 5_817_258
    assert parameters(adapted) - parameters(base) == 645_216 == 5_806_944 // 9
    assert parameters(adapted) == 6_462_474
    assert (len(base.state_dict()), len(adapted.state_dict())) == (157, 182)
    convolutions = [m for m in base.modules() if isinstance(m, nn.Conv2d)]
    assert len(convolutions) == 25
    assert all(c.kernel_size == (3, 3) and c.bias is None for c in convolutions)


def test_what_travels_is_a_ninth_as_the_paper_says():
    """The paper's "MB" are MiB of a saved state: 22.2, 24.7 and 2.58."""
    base = resnet26()
    adapted = add_adapters(base)
    assert mebibytes_saved(base.state_dict()) == pytest.approx(22.27, abs=0.01)
    assert mebibytes_saved(adapted.state_dict()) == pytest.approx(24.75, abs=0.02)
    assert mebibytes_saved(travelling(adapted)) == pytest.approx(2.576, abs=0.005)
    sent = sum(t.numel() * t.element_size() for t in travelling(adapted).values())
    assert sent == 4 * (645_216 + 2_570 + 4 * 3_872) + 8 * 26


def test_the_shortcut_pools_and_adds_zero_channels():
    """One block with silent convolutions is its shortcut."""
    model = ResNet(stem=2, channels=(4,), blocks=1).build((3, 8, 8), 2)
    block = model.stage1[0]
    nn.init.zeros_(block.conv2.weight)
    block.eval()
    x = torch.rand(1, 2, 8, 8)
    y = block(x)
    assert y.shape == (1, 4, 4, 4)
    assert torch.allclose(y[:, :2], nn.functional.avg_pool2d(x, 2))
    assert torch.equal(y[:, 2:], torch.zeros(1, 2, 4, 4))


CONVOLUTIONS = {
    "same": lambda: nn.Conv2d(4, 8, 3, padding=1),
    "stride": lambda: nn.Conv2d(4, 8, 3, padding=1, stride=2, bias=False),
    "valid": lambda: nn.Conv2d(4, 8, 3),
    "narrow padding": lambda: nn.Conv2d(4, 8, 5, padding=1, stride=2),
    "wide padding": lambda: nn.Conv2d(4, 8, 3, padding=2, stride=3),
    "even kernel": lambda: nn.Conv2d(4, 8, 4, padding=1, stride=2),
    "even kernel, same": lambda: nn.Conv2d(4, 8, 2, padding="same"),
    "groups": lambda: nn.Conv2d(4, 8, 3, padding=1, groups=2),
    "depthwise": lambda: nn.Conv2d(4, 4, 3, padding=1, groups=4),
    "dilation": lambda: nn.Conv2d(4, 8, 3, dilation=2, padding=3),
    "flat kernel": lambda: nn.Conv2d(4, 8, (1, 3), padding="same"),
}


@pytest.mark.parametrize("form", ["parallel", "series"])
@pytest.mark.parametrize("kind", CONVOLUTIONS)
def test_folding_is_exact(kind, form):
    torch.manual_seed(0)
    conv = CONVOLUTIONS[kind]()
    rest = (nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(4 * conv.out_channels, 3))
    model = nn.Sequential(conv, *rest).double()
    adapted = add_adapters(model, form=form)
    x = torch.randn(5, 4, 11, 9, dtype=torch.float64)
    plain = remove_adapters(adapted)
    assert not has_adapters(plain)
    assert plain.state_dict().keys() == model.state_dict().keys()
    assert all(weight.requires_grad for weight in plain.parameters())
    assert torch.allclose(adapted(x), plain(x), rtol=0, atol=2e-14 * max(1.0, float(adapted(x).abs().max())))
    assert not torch.allclose(adapted(x), model(x), atol=1e-3)
    assert torch.allclose(add_adapters(model, form=form, init="zero")(x), model(x), rtol=0, atol=1e-13)


def test_folding_all_of_resnet26_is_exact():
    torch.manual_seed(1)
    adapted = add_adapters(ResNet(stem=8, channels=(8, 16, 24), blocks=2).build((3, 24, 24), 5).double())
    adapted(torch.randn(64, 3, 24, 24, dtype=torch.float64))
    adapted.eval()
    x = torch.randn(4, 3, 24, 24, dtype=torch.float64)
    assert torch.allclose(adapted(x), remove_adapters(adapted)(x), rtol=1e-12, atol=2e-14)


def test_parallel_means_the_middle_tap():
    """The adapter of a 3x3 convolution by hand: a 3x3 kernel with the adapter in its middle."""
    conv = nn.Conv2d(2, 3, 3, padding=1, stride=2)
    adapted = add_adapters(nn.Sequential(conv), last="")
    x = torch.randn(1, 2, 7, 7)
    kernel = conv.weight.detach().clone()
    kernel[:, :, 1, 1] += adapted[0].adapter.weight.detach()[:, :, 0, 0]
    by_hand = nn.functional.conv2d(x, kernel, conv.bias, stride=2, padding=1)
    assert torch.allclose(adapted(x), by_hand, atol=1e-6)


def test_what_is_frozen_and_what_is_trained():
    adapted = add_adapters(resnet26())
    trained = {name for name, weight in adapted.named_parameters() if weight.requires_grad}
    assert all("base" not in name for name in trained)
    assert {"head.weight", "head.bias", "norm.weight", "stem.conv.adapter.weight"} <= trained
    assert len(trained) == 25 + 2 * 26 + 2


def test_low_rank_adapters_of_linear_layers():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(10, 20), nn.ReLU(), nn.Linear(20, 4)).double()
    adapted = add_adapters(model, rank=3)
    x = torch.randn(6, 10, dtype=torch.float64)
    assert torch.equal(adapted(x), model(x))
    nn.init.normal_(adapted[0].up)
    plain = remove_adapters(adapted)
    assert torch.allclose(adapted(x), plain(x), rtol=0, atol=2e-14 * float(adapted(x).abs().max()))
    assert torch.allclose(plain[0].weight, model[0].weight + adapted[0].up @ adapted[0].down, atol=1e-14)
    assert sum(w.numel() for w in adapted.parameters() if w.requires_grad) == 3 * (10 + 20) + 20 * 4 + 4
    with pytest.raises(intarsia.IntarsiaError, match="for linear layers give a rank"):
        add_adapters(model)


def test_pointwise_convolutions_are_frozen_or_get_a_low_rank():
    model = nn.Sequential(
        nn.Conv2d(4, 6, 1), nn.Conv2d(6, 6, 3, padding=1, groups=6), nn.Flatten(), nn.Linear(96, 2)
    )
    plain = add_adapters(model)
    assert not plain[0].weight.requires_grad
    ranked = add_adapters(model.double(), rank=2)
    nn.init.normal_(ranked[0].up)
    x = torch.randn(3, 4, 4, 4, dtype=torch.float64)
    assert torch.allclose(ranked(x), remove_adapters(ranked)(x), atol=1e-12)


def test_adapters_twice_and_odd_padding_are_refused():
    model = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.Flatten(), nn.Linear(64, 2))
    with pytest.raises(intarsia.IntarsiaError, match="has adapters already"):
        add_adapters(add_adapters(model))
    odd = nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=2, padding_mode="circular"), nn.Flatten(), nn.Linear(64, 2)
    )
    with pytest.raises(intarsia.IntarsiaError, match="'0' pads with 'circular'"):
        add_adapters(odd)
    with pytest.raises(intarsia.IntarsiaError, match="no linear layer or convolution 'tail'"):
        add_adapters(model, last="tail")


@pytest.mark.parametrize("kind", [k for k in CONVOLUTIONS if "same" not in k or k == "same"])
def test_one_convolution_gives_what_two_do_and_so_do_its_gradients(kind):
    """Values and gradients of the folded convolution against the sum of two, by autograd, in float64."""
    torch.manual_seed(0)
    conv = CONVOLUTIONS[kind]().double()
    if isinstance(conv.padding, str):
        pytest.skip("padding by name is computed as two convolutions")
    adapter = add_adapters(nn.Sequential(conv))[0]
    results = []
    for forward in (adapter.forward, adapter._apart):
        x = torch.randn(
            3, 4, 11, 9, dtype=torch.float64, generator=torch.Generator().manual_seed(1)
        ).requires_grad_()
        adapter.adapter.weight.grad = None
        y = forward(x)
        (y * torch.sin(torch.arange(y.numel(), dtype=torch.float64)).view_as(y)).sum().backward()
        results.append((y.detach(), x.grad, adapter.adapter.weight.grad.clone()))
    for one, two in zip(*results, strict=True):
        assert torch.allclose(one, two, rtol=1e-12, atol=1e-12)


def test_one_convolution_is_exact_enough_in_float32():
    """The largest difference between both ways after ResNet's first stage, relative to the largest value."""
    torch.manual_seed(0)
    adapted = add_adapters(ResNet(stem=16, channels=(32,), blocks=4).build((3, 32, 32), 10))
    x = torch.randn(16, 3, 32, 32)
    adapted(x)
    adapted.eval()
    one = adapted(x)
    for module in adapted.modules():
        if hasattr(module, "_apart"):
            module.forward = module._apart
    two = adapted(x)
    assert not torch.equal(one, two)
    assert float((one - two).abs().max() / two.abs().max()) < 1e-5


def test_networks_may_look_at_the_weight_of_a_linear_layer_with_an_adapter():
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dropout=0.0)
    adapted = add_adapters(nn.Sequential(layer, nn.Linear(8, 3)), rank=2)
    for module in adapted.modules():
        if isinstance(module, LowRankAdapter):
            nn.init.normal_(module.up, 0.0, 0.1)
    x = torch.rand(4, 5, 8)
    with torch.no_grad():
        slow, fast = adapted.train()(x), adapted.eval()(x)
        plain = remove_adapters(adapted).eval()(x)
    torch.testing.assert_close(fast, slow, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(fast, plain, rtol=1e-4, atol=1e-5)
