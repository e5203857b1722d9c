"""MobileNetV2: published sizes, TensorFlow's names and layouts, and features that are worth something."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest
import torch

import intarsia
from intarsia.models import (
    MobileNetV2,
    add_adapters,
    load_weights,
    mobilenet_from_tensorflow,
    parts_of,
    remove_adapters,
)
from intarsia.models.architectures.mobilenet import divisible, mobilenet_base, published_width

WEIGHTS = "mobilenetv2_035_imagenet_backbone.npz"
CHANNELS = [8, 8, 8, 16, 16, 16, 24, 24, 24, 24, 32, 32, 32, 56, 56, 56, 112]
STRIDES = {1: 2, 3: 2, 6: 2, 13: 2}


def floats(model):
    state = model.state_dict()
    return {n: t for n, t in state.items() if t.is_floating_point() and not n.startswith("head.")}


@pytest.mark.parametrize(
    ("width", "parameters", "with_statistics"),
    [(1.0, 2_223_872, 2_257_984), (0.35, 396_128, 410_208), (1.4, 4_315_776, 4_363_712)],
)
def test_published_sizes(width, parameters, with_statistics):
    model = MobileNetV2(width=width).build((3, 96, 96), 10)
    own = [p.numel() for n, p in model.named_parameters() if not n.startswith("head.")]
    assert sum(own) == parameters
    assert sum(t.numel() for t in floats(model).values()) == with_statistics


def test_channels_are_rounded_as_published():
    assert [divisible(c) for c in (5, 11, 11.2, 22, 33, 112)] == [8, 16, 16, 24, 32, 112]


def test_parts_and_sizes_of_images():
    model = MobileNetV2(width=0.35).build((1, 40, 33), 4)
    assert list(parts_of(model)) == ["stem", *(f"block{i}" for i in range(1, 18)), "last", "head"]
    assert model.eval()(torch.rand(2, 1, 40, 33)).shape == (2, 4)
    fine = MobileNetV2(width=0.35, stride=1).build((3, 32, 32), 4)
    assert fine[:-3](torch.rand(2, 3, 32, 32)).shape == (2, 1280, 2, 2)
    with pytest.raises(intarsia.IntarsiaError, match="at least 16x16"):
        MobileNetV2().build((3, 8, 8), 4)


def keras_arrays():
    """Random weights of width 0.35 under Keras's names, as it makes the layers."""
    random = np.random.default_rng(0)
    arrays = {}

    def layer(conv, norm, kernel, channels, kind="kernel"):
        arrays[f"{conv}/{kind}"] = random.normal(0, 0.3, kernel)
        for name in ("gamma", "beta", "moving_mean"):
            arrays[f"{norm}/{name}"] = random.normal(1 if name == "gamma" else 0, 0.2, channels)
        arrays[f"{norm}/moving_variance"] = random.uniform(0.5, 2, channels)

    layer("Conv1", "bn_Conv1", (3, 3, 3, 16), 16)
    inputs = 16
    for i, outputs in enumerate(CHANNELS):
        prefix, inner = (f"block_{i}", 6 * inputs) if i else ("expanded_conv", inputs)
        if i:
            layer(f"{prefix}_expand", f"{prefix}_expand_BN", (1, 1, inputs, inner), inner)
        depthwise = (f"{prefix}_depthwise", f"{prefix}_depthwise_BN")
        layer(*depthwise, (3, 3, inner, 1), inner, "depthwise_kernel")
        layer(f"{prefix}_project", f"{prefix}_project_BN", (1, 1, inner, outputs), outputs)
        inputs = outputs
    layer("Conv_1", "Conv_1_bn", (1, 1, inputs, 1280), 1280)
    return arrays


def keras_features(arrays, pixels):
    """The same network written down a second time, for rows of channels, with TensorFlow's "same" padding."""

    def conv(x, name, stride=1, kind="kernel"):
        kernel = arrays[f"{name}/{kind}"]
        size = kernel.shape[0]
        total = [max((-(-n // stride) - 1) * stride + size - n, 0) for n in x.shape[1:3]]
        x = np.pad(x, [(0, 0), *((t // 2, t - t // 2) for t in total), (0, 0)])
        windows = np.lib.stride_tricks.sliding_window_view(x, (size, size), (1, 2))[:, ::stride, ::stride]
        rule = "nijchw,hwco->nijo" if kind == "kernel" else "nijchw,hwcm->nijc"
        return np.einsum(rule, windows, kernel, optimize=True)

    def norm(x, name):
        p = {k: arrays[f"{name}/{k}"] for k in ("gamma", "beta", "moving_mean", "moving_variance")}
        return (x - p["moving_mean"]) / np.sqrt(p["moving_variance"] + 1e-3) * p["gamma"] + p["beta"]

    def relu6(x):
        return np.clip(x, 0, 6)

    x = relu6(norm(conv(pixels / 127.5 - 1, "Conv1", 2), "bn_Conv1"))
    for i, outputs in enumerate(CHANNELS):
        prefix, start = f"block_{i}" if i else "expanded_conv", x
        if i:
            x = relu6(norm(conv(x, f"{prefix}_expand"), f"{prefix}_expand_BN"))
        stride = STRIDES.get(i, 1)
        x = relu6(norm(conv(x, f"{prefix}_depthwise", stride, "depthwise_kernel"), f"{prefix}_depthwise_BN"))
        x = norm(conv(x, f"{prefix}_project"), f"{prefix}_project_BN")
        if stride == 1 and start.shape[-1] == outputs:
            x = x + start
    return relu6(norm(conv(x, "Conv_1"), "Conv_1_bn")).mean((1, 2))


@pytest.mark.parametrize("size", [(96, 96), (50, 35)])
def test_it_computes_what_keras_does(size):
    arrays = keras_arrays()
    tensors = mobilenet_from_tensorflow(arrays)
    model = MobileNetV2(width=0.35).build((3, *size), 5).double().eval()
    assert {n for n in load_weights(model, tensors) if "num_batches" not in n} == {"head.weight", "head.bias"}
    pixels = np.random.default_rng(1).integers(0, 256, (2, *size, 3))
    arrays = {n: a.astype(np.float32).astype(np.float64) for n, a in arrays.items()}
    ours = model[:-1](torch.from_numpy(pixels / 255).permute(0, 3, 1, 2))
    assert np.allclose(ours.detach().numpy(), keras_features(arrays, pixels), rtol=1e-9, atol=1e-9)


def test_every_tensor_is_mapped_and_others_are_refused(tmp_path):
    arrays = keras_arrays()
    model = MobileNetV2(width=0.35).build((3, 32, 32), 5)
    scoped = {f"MobilenetV2/{n}:0": a for n, a in arrays.items()}
    for names in (arrays, scoped, {**arrays, "predictions/kernel": np.zeros((1280, 1000))}):
        tensors = mobilenet_from_tensorflow(names)
        assert {n: t.shape for n, t in tensors.items()} == {n: t.shape for n, t in floats(model).items()}
    with pytest.raises(
        intarsia.IntarsiaError, match="'block_3_squeeze/kernel' is no tensor of a MobileNetV2"
    ):
        mobilenet_from_tensorflow({"block_3_squeeze/kernel": np.zeros((1, 1, 2, 2))})
    part = dict(list(arrays.items())[:20])
    np.savez(tmp_path / "part.npz", **part)
    with pytest.raises(intarsia.IntarsiaError, match=r"part\.npz is no whole MobileNetV2"):
        mobilenet_base(tmp_path / "part.npz")
    (tmp_path / "bad.npz").write_bytes(b"PK no")
    with pytest.raises(intarsia.IntarsiaError, match=r"is no \.npz file"):
        mobilenet_from_tensorflow(tmp_path / "bad.npz")


@pytest.mark.parametrize("form", ["parallel", "series"])
def test_adapters_fold_exactly(form):
    torch.manual_seed(0)
    model = MobileNetV2(width=0.35).build((3, 34, 32), 5).double()
    load_weights(model, mobilenet_from_tensorflow(keras_arrays()))
    adapted = add_adapters(model, form=form).eval()
    x = torch.rand(3, 3, 34, 32, dtype=torch.float64)
    assert torch.allclose(adapted(x), remove_adapters(adapted)(x), rtol=1e-11, atol=1e-12)
    assert not torch.allclose(adapted(x), model.eval()(x), atol=1e-3)
    frozen = sum(w.numel() for w in adapted.parameters() if not w.requires_grad)
    assert frozen == sum(m.weight.numel() for m in model.modules() if isinstance(m, torch.nn.Conv2d))


def _probe():
    path = Path(__file__).parents[2] / "benchmarks" / "linear_probe.py"
    spec = importlib.util.spec_from_file_location("linear_probe", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.probe


def test_published_weights_are_worth_something(shared_data):
    """A linear probe on STL-10 with 25 of 500 training images a class, at 160 px (all: 89.4 %)."""
    tensors, card = mobilenet_base(shared_data / WEIGHTS)
    assert len(tensors) == 260
    assert published_width(tensors, WEIGHTS) == 0.35
    assert (card["parameters"], card["parameters"] + card["statistics"]) == (396_128, 410_208)
    assert _probe()(shared_data / WEIGHTS, 160, str(shared_data), (25, 15)) > 0.8
