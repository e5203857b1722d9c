"""DP-SGD at a client: bounded gradients against one sample after the other, noise, and models that cannot have it."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import nn

import intarsia
from intarsia.core import SettingsError
from intarsia.data import Examples
from intarsia.federation import RunStopped
from intarsia.models import CNN, MLP, CharTransformer, add_adapters
from intarsia.training import (
    LOSSES,
    Descent,
    Objective,
    Proximal,
    Situation,
    Training,
    instructions,
    train_in,
)
from intarsia.trust import Privacy
from intarsia.trust.accounting import Release, epsilon_of
from tests.federation.test_loop import StopAfterOne
from tests.golden.plays import digests

pytest.importorskip("opacus")
pytest.importorskip("dp_accounting")

from intarsia.training.private import PrivateSteps, check_gradients, check_model, train_privately

IMAGES = Examples(
    torch.randn(6, 1, 8, 8, generator=torch.Generator().manual_seed(1)), torch.tensor([0, 1, 2, 3, 4, 5])
)
MODELS = {
    "mlp": lambda: MLP((9,)).build((1, 8, 8), 10),
    "cnn": lambda: CNN((3, 4), 7).build((1, 8, 8), 10),
    "parallel": lambda: add_adapters(CNN((3, 4), 7).build((1, 8, 8), 10)),
    "series": lambda: add_adapters(CNN((3, 4), 7).build((1, 8, 8), 10), form="series"),
    "low rank": lambda: add_adapters(CNN((3, 4), 7).build((1, 8, 8), 10), rank=2),
    "strided": lambda: add_adapters(
        nn.Sequential(nn.Conv2d(1, 4, 3, stride=2, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(64, 10))
    ),
}


def made(name):
    torch.manual_seed(0)
    return MODELS[name]()


def bounded_step(model, examples, bound, lr, pull=0.0, start=None):
    """Return the weights after one step with every sample's gradient held to a bound, one sample after the other."""
    weights = {n: p for n, p in model.named_parameters() if p.requires_grad}
    total = {n: torch.zeros_like(p) for n, p in weights.items()}
    for x, y in zip(examples.x, examples.y, strict=True):
        loss = nn.functional.cross_entropy(model(x[None]), y[None])
        gradients = torch.autograd.grad(loss, list(weights.values()))
        norm = math.sqrt(sum(float(g.square().sum()) for g in gradients))
        for name, gradient in zip(weights, gradients, strict=True):
            total[name] += gradient * min(1.0, bound / norm)
    return {
        n: p.detach() - lr * (total[n] / len(examples) + (pull * (p.detach() - start[n]) if pull else 0))
        for n, p in weights.items()
    }


def private_step(
    model, bound, noise, objective=None, received=None, batch=6, seed=3, precision="fp32", **more
):
    training = Training(lr=0.5, batch_size=batch, precision=precision)
    descent = Descent(objective or Objective(), training, 0.5, 1)
    how = PrivateSteps.of(Privacy(level="example", clip=bound, noise=noise, **more), seed, "test")
    at = Situation(model, LOSSES["cross_entropy"], received or {})
    return train_privately(at, descent, IMAGES, how)


@pytest.mark.parametrize("name", MODELS)
def test_a_step_is_that_of_bounded_gradients_of_single_samples(name):
    model = made(name)
    expected = bounded_step(copy.deepcopy(model), IMAGES, 0.8, 0.5)
    frozen = {n: p.clone() for n, p in model.named_parameters() if not p.requires_grad}
    trained = private_step(model, 0.8, 1e-9)
    assert trained.steps == 1
    for n, weight in model.named_parameters():
        torch.testing.assert_close(weight.detach(), (expected | frozen)[n], rtol=1e-4, atol=1e-6)


@pytest.mark.skipif(not instructions(torch.device("cpu")), reason="the processor multiplies no bf16 numbers")
@pytest.mark.parametrize("name", MODELS)
def test_gradients_in_bf16_are_bounded_in_single_precision(name):
    model = made(name).train()
    start = {n: p.detach().clone() for n, p in model.named_parameters() if p.requires_grad}
    expected = bounded_step(train_in(copy.deepcopy(model), "bf16"), IMAGES, 0.05, 0.5)
    private_step(train_in(model, "bf16"), 0.05, 0.0, precision="bf16")
    moved = {n: p.detach() - start[n] for n, p in model.named_parameters() if n in start}
    length = math.sqrt(sum(float(m.double().square().sum()) for m in moved.values()))
    gaps = [m - (expected[n] - start[n]) for n, m in moved.items()]
    assert {m.dtype for m in moved.values()} == {torch.float32}
    assert 0 < length <= 0.5 * 0.05 * (1 + 1e-5)
    assert math.sqrt(sum(float(gap.double().square().sum()) for gap in gaps)) < 0.02 * 0.5 * 0.05


def test_a_proximal_pull_needs_no_bound():
    model = made("mlp")
    received = {n: p.detach() + 1 for n, p in model.named_parameters()}
    expected = bounded_step(copy.deepcopy(model), IMAGES, 0.8, 0.5, 0.3, received)
    private_step(model, 0.8, 1e-9, Proximal(mu=0.3), received)
    for n, weight in model.named_parameters():
        torch.testing.assert_close(weight.detach(), expected[n], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", ["keyed", "system"])
def test_the_noise_is_that_of_the_sum_divided_by_the_batch_that_is_expected(kind):
    moves = []
    for seed in range(40):
        model = made("mlp")
        before = torch.cat([p.detach().flatten() for p in model.parameters()])
        private_step(model, 1e-6, 2e6, seed=seed, randomness=kind)  # the gradients are as good as nothing
        moves.append(torch.cat([p.detach().flatten() for p in model.parameters()]) - before)
    assert float(torch.cat(moves).std()) == pytest.approx(0.5 * 2.0 / 6, rel=0.02)


def test_batches_are_drawn_by_chance_and_one_without_samples_gets_its_noise():
    how = PrivateSteps.of(Privacy(level="example", clip=1.0, noise=1.0), 0, "test")
    sizes = [len(how.batch(1000, 0.1, step)) for step in range(50)]
    assert len(set(sizes)) > 10
    assert sum(sizes) / 50 == pytest.approx(100, abs=5 * math.sqrt(90 / 50))
    model, many = made("mlp"), Examples(IMAGES.x[:1], IMAGES.y[:1])
    before = [p.detach().clone() for p in model.parameters()]
    descent = Descent(Objective(), Training(batch_size=1), 0.1, 1)
    none = PrivateSteps(how.privacy, _Nobody(), ())
    train_privately(Situation(model, LOSSES["cross_entropy"], {}), descent, many, none)
    assert all(not torch.equal(old, new) for old, new in zip(before, model.parameters(), strict=True))


class _Nobody:
    """Draws no sample."""

    def uniform(self, count, *purpose):
        return PrivateSteps.of(Privacy(), 0).source.uniform(count, *purpose) + 2

    def normal(self, count, *purpose):
        return PrivateSteps.of(Privacy(), 0).source.normal(count, *purpose)


def test_nothing_is_told_of_how_training_went():
    score = private_step(made("mlp"), 1.0, 1.0).score
    assert (score.n, score.correct) == (0, 0)
    assert math.isnan(score.loss)


def test_a_model_is_left_without_hooks_and_can_be_trained_again():
    model = made("parallel")
    for _ in range(2):
        private_step(model, 1.0, 1.0)
    assert not any(m._forward_hooks or m._backward_hooks for m in model.modules())
    assert not any(hasattr(p, "grad_sample") for p in model.parameters())
    assert not any(getattr(m, "apart", False) for m in model.modules())


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (
            nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8), nn.Linear(8, 10)),
            "group norms instead",
        ),
        (nn.LSTM(4, 4), "DPLSTM instead"),
        (CharTransformer().build((20,), 10), "MultiheadAttention"),
    ],
)
def test_a_model_that_cannot_have_it_is_refused_with_what_to_do(model, said):
    with pytest.raises(SettingsError, match=said):
        check_model(model)


class Twice(nn.Module):
    """Uses a layer's weight behind its back."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(64, 10)

    def forward(self, x):
        return self.layer(x.flatten(1)) + nn.functional.linear(x.flatten(1), self.layer.weight)


def test_a_parameter_that_is_used_where_nobody_sees_it_is_found_out():
    with pytest.raises(SettingsError, match=r"layer\.weight.*do not add up"):
        check_gradients(Situation(Twice(), LOSSES["cross_entropy"], {}), IMAGES)


EXAMPLE = ("privacy.level=example", "privacy.clip=1.0", "privacy.noise=0.8", "training.batch_size=8")


def test_engines_agree_and_a_run_that_was_stopped_goes_on_to_the_same_end(small_run):
    whole = small_run(*EXAMPLE, out="whole")
    other = small_run(*EXAMPLE, "engine.name=local", "engine.workers=2", out="other")
    stopped = small_run(*EXAMPLE, out="stopped", observer=StopAfterOne())
    again = intarsia.resume(stopped.path)
    assert digests(whole) == digests(other) == digests(again)
    assert whole.summary["privacy"] == other.summary["privacy"] == again.summary["privacy"]
    info = whole.setup.population.infos[0]
    told = whole.summary["privacy"]["clients"][info.name]
    steps = 3 * math.ceil(info.train_samples / 8)
    spent = {Release(8 / info.train_samples, 0.8): steps}
    assert told["times"] == 3
    assert told["epsilon"] == epsilon_of(spent, info.train_samples**-1.1)
    assert whole.summary["privacy"]["epsilon"] >= told["epsilon"]


def test_adapters_under_found_cohorts_and_codecs_are_protected_too(small_run):
    """Whatever follows from private updates costs nothing more."""
    changes = (
        "method=modfl",
        "sharing={cohorts='found', number=2}",
        "model={name='cnn', channels=[3, 4], hidden=6}",
    )
    run = small_run(*EXAMPLE, *changes, "adapters=parallel", "codec=int8", "population.generations=['8x8']")
    assert run.summary["privacy"]["level"] == "example"
    assert run.groups


def test_a_client_that_has_spent_its_budget_trains_no_more_and_the_run_stops_with_the_last(
    small_run, tmp_path
):
    infos = small_run("rounds=1", out="plain").setup.population.infos
    smallest = min(infos, key=lambda info: info.train_samples).train_samples
    two = {Release(8 / smallest, 0.8): 2 * math.ceil(smallest / 8)}
    budget = epsilon_of(two, smallest**-1.1) + 1e-6
    with pytest.raises(RunStopped, match="no client can train any more"):
        small_run(*EXAMPLE, f"privacy.budget={budget}", "rounds=12")
    run = intarsia.open_run(tmp_path / "run")
    told = run.summary["privacy"]
    assert told["budget_spent"]
    assert told["epsilon"] <= budget
    trained = [
        row["client"]
        for row in run.traffic
        if (row["purpose"], row["direction"], row["block"]) == ("train", "up", "model")
    ]
    assert {name: trained.count(name) for name in told["clients"]} == {
        n: own["times"] for n, own in told["clients"].items()
    }


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (["method=fedem"], "steps of its own"),
        (["method=pfedme"], "steps of its own"),
        (["training.class_weights=balanced"], "class_weights"),
        (["privacy.adaptive=true"], "give the noise"),
    ],
)
def test_what_is_not_covered_is_refused(changes, said, small_run):
    with pytest.raises(SettingsError, match=said):
        small_run(*EXAMPLE, *changes)
