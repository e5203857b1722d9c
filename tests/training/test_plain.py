"""What makes training fast changes no result: each switch against the plain way, to float tolerance."""

from __future__ import annotations

import copy
import ctypes

import pytest
import torch

import intarsia
from intarsia.models.architectures.simple import CNN, relu_first
from intarsia.training import LOSSES, solver

MODELS = {
    "mlp": "{name='mlp', hidden=[16]}",
    "logistic": "logistic",
    "cnn": "{name='cnn', channels=[4, 4], hidden=8}",
}


def weights(run: intarsia.Run) -> dict[str, torch.Tensor]:
    return {f"{c}.{n}": t for c in run.clients for n, t in run.client(c).model().state_dict().items()}


def alike(runs: list[intarsia.Run]) -> None:
    plain, fast = (weights(run) for run in runs)
    assert plain.keys() == fast.keys()
    for name, tensor in plain.items():
        torch.testing.assert_close(fast[name], tensor, rtol=1e-3, atol=1e-4)
    losses = [[row["loss"] for row in run.metrics] for run in runs]
    assert losses[0] == pytest.approx(losses[1], rel=1e-3, abs=1e-4)


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("model", MODELS)
def test_the_plain_way_gives_the_same_results(model, optimizer, small_run):
    settings = [f"training.optimizer={optimizer}", "rounds=2", "training.weight_decay=0.01"]
    settings += [f"training.momentum={0.5 if optimizer == 'sgd' else 0}", "training.lr=0.02"]
    settings += [f"model={MODELS[model]}"]
    settings += ["population.generations=['8x8']", "population.clients=4"]
    runs = [small_run(*settings, f"training.plain={way}", out=way) for way in ("true", "false")]
    alike(runs)
    setups = [run.experiment.setup for run in runs]
    layouts = [any(t.channels_last for t in setup.templates.values()) for setup in setups]
    assert layouts == [False, model == "cnn"]
    assert [run.settings.training.batched for run in runs] == [False, model != "cnn"]


def test_batched_clients_alone_can_be_switched_off(small_run):
    alike([small_run(f"training.batched={way}", out=way) for way in ("false", "true")])


def test_pooling_before_the_relu_gives_the_same_outputs_and_gradients():
    torch.manual_seed(0)
    x, y = torch.randn(6, 1, 8, 8), torch.randint(0, 3, (6,))
    first = CNN((4, 4), 8).build((1, 8, 8), 3)
    last = relu_first(copy.deepcopy(first))
    assert list(dict(first.named_children()))[:3] == ["conv1", "pool1", "relu1"]
    assert list(dict(last.named_children()))[:3] == ["conv1", "relu1", "pool1"]
    assert torch.equal(first(x), last(x))
    for model in (first, last):
        LOSSES["cross_entropy"](model(x), y).backward()
    for name, weight in first.named_parameters():
        torch.testing.assert_close(weight.grad, last.get_parameter(name).grad, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(("how", "calls"), [("", 3), ("system", 0)])
def test_the_allocator_is_told_what_to_do_unless_the_environment_says_no(how, calls, monkeypatch):
    made = []

    class Library:
        def mallopt(self, *options: int) -> None:
            made.append(options)

        def malloc_trim(self, kept: int) -> None:
            made.append((kept,))

        def gnu_get_libc_version(self) -> None:
            """Be glibc."""

    monkeypatch.setattr(ctypes, "CDLL", lambda name: Library())
    monkeypatch.setattr(solver.sys, "platform", "linux")
    monkeypatch.setenv("INTARSIA_ALLOCATOR", how)
    solver.tune_allocator.__wrapped__()
    solver.return_freed_memory()
    assert len(made) == calls
