"""bf16: the numbers against roundings by hand, bits that repeat, machines that have it and machines that have not."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tomli_w
import torch
from torch import nn
from typer.testing import CliRunner

import intarsia
from intarsia.cli.app import app
from intarsia.core import SettingsError, chance
from intarsia.data import Examples
from intarsia.methods.distilling.fedkemf import Mutual, Pair
from intarsia.methods.fedem.fedem import WeightedLosses
from intarsia.methods.fedem.mixture import Mixture
from intarsia.models.adapters import ConvAdapter
from intarsia.models.architectures.simple import MLP, Logistic
from intarsia.training import (
    LOSSES,
    Batch,
    Descent,
    Objective,
    Situation,
    Training,
    as_usual,
    instructions,
    predict,
    train,
    train_in,
)
from intarsia.training.fast import StackMember, chain_for, folding, train_together
from tests.conftest import SMALL

CPU = torch.device("cpu")
needs_bf16 = pytest.mark.skipif(not instructions(CPU), reason="the processor multiplies no bf16 numbers")
BF16 = Training(lr=0.5, batch_size=64, precision="bf16")
IMAGES = ["population.generations=['8x8']", "model={name='cnn', channels=[4, 8], hidden=16}"]
LOSS = LOSSES["cross_entropy"]


def rounded(numbers) -> np.ndarray:
    """Return float32 numbers rounded to the nearest that has 16 bits, ties to the even one."""
    bits = np.asarray(numbers, dtype=np.float32).view(np.uint32).astype(np.uint64)
    bits = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000
    return bits.astype(np.uint32).view(np.float32)


def step_by_hand(weight, bias, x, y, lr, gradients):
    """Take a step of a linear layer on cross entropy; `gradients` is what becomes of sums of products."""
    x, used = rounded(x).astype(np.float64), rounded(weight).astype(np.float64)
    scores = rounded(x @ used.T + rounded(bias)).astype(np.float64)
    likely = np.exp(scores - scores.max(1, keepdims=True))
    slope = likely / likely.sum(1, keepdims=True)
    slope[np.arange(len(y)), y] -= 1
    slope = rounded(slope / len(y)).astype(np.float64)
    return weight - lr * gradients(slope.T @ x), bias - lr * gradients(slope.sum(0))


def lesson(samples=12, inputs=6, classes=3) -> Examples:
    """Return samples whose numbers have 12 bits: more than bf16 keeps, and their sums are exact."""
    drawn = torch.randint(-2048, 2048, (samples, inputs), generator=torch.Generator().manual_seed(2))
    return Examples(drawn / 1024, torch.arange(samples) % classes)


def logistic() -> nn.Module:
    torch.manual_seed(3)
    model = Logistic().build((6,), 3)
    with torch.no_grad():
        for weight in model.parameters():
            weight.copy_((weight * 4096).round() / 4096)
    return model


def descent(training=BF16, objective=None) -> Descent:
    return Descent(objective or Objective(), training, training.lr, 1)


def trained_alone(model: nn.Module, examples: Examples, training=BF16) -> nn.Module:
    trained = train_in(copy.deepcopy(model), training.precision)
    train(Situation(trained, LOSS, {}), descent(training), examples, chance.generator(0, "t"))
    return as_usual(trained)


@needs_bf16
@pytest.mark.parametrize("together", [False, True])
def test_a_step_is_one_of_rounded_numbers_with_weights_in_single_precision(together):
    model, examples = logistic(), lesson()
    if together:
        chain = chain_for(model, BF16, Objective(), LOSS)
        (made,) = train_together(chain, [member(model, examples)], descent())
        found, gradients = [made.weights["head.weight"], made.weights["head.bias"]], lambda sums: sums
    else:
        found, gradients = list(trained_alone(model, examples).parameters()), rounded
    before = [weight.detach().double().numpy() for weight in model.parameters()]
    x, y = examples.x.numpy(), examples.y.numpy()
    expected = step_by_hand(*before, x, y, BF16.lr, gradients)
    usual = trained_alone(model, examples, replace(BF16, precision="fp32"))
    for own, hand, single in zip(found, expected, usual.parameters(), strict=True):
        assert own.dtype == torch.float32
        assert np.abs(own.detach().numpy() - hand).max() < 2e-7
        assert np.abs(single.detach().numpy() - hand).max() > 1e-5


def member(model: nn.Module, examples: Examples, seed=0) -> StackMember:
    weights = dict(model.named_parameters())
    return StackMember(weights, frozenset(weights), {}, examples, chance.generator(seed, "t"))


@needs_bf16
@pytest.mark.parametrize("steps", [1, 3])
def test_a_folded_step_rounds_all_but_its_gradient(steps, monkeypatch):
    torch.manual_seed(4)
    parts = (nn.Flatten(), nn.Linear(6, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 3))
    model, examples = nn.Sequential(*parts), lesson()
    training = Training(lr=0.5, batch_size=12 // steps, batched=False, precision="bf16")
    assert [own.out_features for own in folding.foldable(model)] == [256]
    folded = trained_alone(model, examples, training)
    monkeypatch.setattr(folding, "LARGE", 1 << 30)
    usual = trained_alone(copy.deepcopy(model), examples, training)
    moved, as_usual_moved = (own[3].weight - model[3].weight for own in (folded, usual))
    apart, size = (moved - as_usual_moved).abs(), as_usual_moved.abs()
    assert apart.max() > 0
    assert (apart <= size / 256 + 1e-7).all() if steps == 1 else apart.norm() < size.norm() / 50
    assert torch.equal(folded[5].weight, usual[5].weight) == (steps == 1)


@needs_bf16
def test_batched_clients_have_the_same_bits_whoever_is_beside_them():
    torch.manual_seed(5)
    training, counts = Training(lr=0.1, batch_size=10, epochs=2, precision="bf16"), (40, 17, 64, 33, 21)
    models = [MLP((33, 20)).build((50,), 5) for _ in counts]
    data = [Examples(torch.randn(n, 50), torch.randint(0, 5, (n,))) for n in counts]
    chain = chain_for(models[0], training, Objective(), LOSS)
    pairs = list(zip(models, data, strict=True))

    def play(chosen):
        return train_together(chain, [member(*pairs[i], seed=i) for i in chosen], descent(training))

    beside = play(range(5))
    for i, together in enumerate(beside):
        (alone,) = play([i])
        assert together.trained == alone.trained
        assert all(torch.equal(own, together.weights[name]) for name, own in alone.weights.items())


@needs_bf16
@pytest.mark.parametrize("objective", ["plain", "fedem", "fedkemf"])
def test_every_pass_of_training_is_in_bf16_and_no_other(objective):
    torch.manual_seed(6)
    networks = [nn.Sequential(nn.Flatten(), nn.Linear(6, 3)) for _ in range(2)]
    models = {"plain": networks[0], "fedem": Mixture(networks), "fedkemf": Pair(*networks)}
    objectives = {
        "plain": Objective(),
        "fedem": WeightedLosses(Objective(), torch.full((2, 12), 0.5)),
        "fedkemf": Mutual(Objective(), 1.0),
    }
    model, seen = train_in(models[objective], "bf16"), []
    for layer in model.modules():
        if isinstance(layer, nn.Linear):
            layer.register_forward_hook(lambda _, inputs, outputs: seen.append(outputs.dtype))
    examples = lesson()
    model.train()
    batch = Batch(examples.x, examples.y, torch.arange(12))
    passed = objectives[objective].forward(Situation(model, LOSS, {}), batch)
    passed.value.backward()
    assert set(seen) == {torch.bfloat16}
    assert {t.dtype for t in passed} == {torch.float32}
    assert {p.grad.dtype for p in model.parameters()} == {torch.float32}
    seen.clear()
    predict(copy.deepcopy(model), examples)
    assert set(seen) == {torch.float32}


@needs_bf16
def test_adapters_have_the_gradients_of_two_convolutions():
    torch.manual_seed(7)
    one = ConvAdapter(nn.Conv2d(3, 4, 3, padding=1), "parallel", "he")
    other = copy.deepcopy(one)
    other.apart = True
    x = torch.randn(5, 3, 8, 8)
    for adapter in (one, other):
        train_in(adapter.train(), "bf16")(x).square().mean().backward()
        assert adapter.adapter.weight.grad.dtype == torch.float32
        assert adapter.base.weight.grad is None
    exact = copy.deepcopy(as_usual(one))
    exact.zero_grad()
    exact(x).square().mean().backward()
    size = exact.adapter.weight.grad.abs().max()
    gaps = [(a.adapter.weight.grad - exact.adapter.weight.grad).abs().max() / size for a in (one, other)]
    assert all(0 < gap < 0.01 for gap in gaps)


@needs_bf16
def test_results_do_not_depend_on_the_workers_and_models_leave_in_single_precision(small_run):
    engines = [("debug", 0), ("local", 1), ("local", 2)]
    runs = [
        small_run(
            *IMAGES,
            "population.clients=4",
            "rounds=1",
            "training.precision=bf16",
            f"engine={{name='{n}', workers={w}}}",
            out=f"{n}{w}",
        )
        for n, w in engines
    ]
    for table in ("metrics.jsonl", "traffic.jsonl"):
        assert len({(run.path / table).read_bytes() for run in runs}) == 1
    model = runs[0].client(next(iter(runs[0].clients))).model()
    assert "forward" not in vars(model)
    assert {t.dtype for t in model.state_dict().values()} == {torch.float32}


@needs_bf16
def test_evaluation_in_bf16_changes_scores_and_nothing_else(small_run):
    usual, asked = (
        small_run("rounds=1", f"evaluation.precision={precision}", out=precision)
        for precision in ("fp32", "bf16")
    )
    rows = [{split: [] for split in ("train", "test")} for _ in range(2)]
    for own, run in zip(rows, (usual, asked), strict=True):
        for row in map(json.loads, (run.path / "metrics.jsonl").read_text().splitlines()):
            own[row["split"]].append(row["loss"])
    assert rows[0]["train"] == rows[1]["train"]
    assert rows[0]["test"] != rows[1]["test"]
    assert rows[0]["test"] == pytest.approx(rows[1]["test"], rel=0.01)


@pytest.fixture
def without_bf16(monkeypatch):
    """Let the processor have no instructions for it."""
    for probe in ("_is_amx_tile_supported", "_is_avx512_bf16_supported"):
        monkeypatch.setattr(torch.cpu, probe, bool, raising=False)
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    return monkeypatch


@pytest.mark.parametrize("setting", ["training.precision", "evaluation.precision"])
def test_a_machine_without_it_refuses_and_says_what_to_do(setting, small_run, without_bf16, tmp_path):
    with pytest.raises(SettingsError, match=f"{setting}: .*AVX512-BF16.*fp32.*--allow-slow"):
        small_run(f"{setting}=bf16")
    assert not (tmp_path / "run").exists()


def test_it_is_emulated_where_that_is_allowed_and_goes_on_elsewhere_with_a_warning(
    without_bf16, tmp_path: Path
):
    out, recipe = tmp_path / "run", tmp_path / "small.toml"
    recipe.write_text(tomli_w.dumps({**SMALL, "rounds": 1, "evaluation": {"metrics": []}}))
    asked = [
        "run",
        str(recipe),
        "--set",
        "training.precision=bf16",
        "--no-page",
        "--quiet",
        "--out",
        str(out),
    ]
    assert CliRunner().invoke(app, asked).exit_code != 0
    done = CliRunner().invoke(app, [*asked, "--allow-slow"])
    assert done.exit_code == 0, done.output
    (before,) = json.loads((out / "versions.json").read_text())
    assert before["arithmetic"].startswith("bf16 emulated by ")
    without_bf16.undo()
    if not instructions(CPU):
        pytest.skip("the processor multiplies no bf16 numbers")
    with pytest.warns(UserWarning, match="another kind of machine .*emulated"):
        assert intarsia.resume(out, rounds=2).summary["finished"]
    first, second = json.loads((out / "versions.json").read_text())
    assert first == before
    assert second == {**first, "arithmetic": instructions(CPU)}


def test_differences_of_gradients_are_refused(small_run):
    with pytest.raises(SettingsError, match=r'method.variant: "hf" .* "fo"'):
        small_run("method=per_fedavg", "training.precision=bf16")
