"""Adapters under every method, by settings alone; norms that stay at home; weights from files."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import intarsia
from intarsia.blocks import Address, Block, Fold, Merge
from intarsia.methods.fednova import Nova
from intarsia.models import has_adapters, load_weights

ADAPTED = {
    "name": "adapted",
    "rounds": 3,
    "method": "fedavg",
    "sharing": {"by": "device"},
    "adapters": "parallel",
    "population": {"name": "digits", "clients": 8, "cohorts": 2},
    "model": {"name": "cnn", "channels": [4, 6], "hidden": 8},
    "training": {"lr": 0.05, "batch_size": 16},
    "engine": {"name": "debug", "device": "cpu"},
}
METHODS = {
    "fedavg": [],
    "fedprox": ["objective.mu=0.1"],
    "fednova": [],
    "fedper": [],
    "modfl": ["sharing={}"],
    "local": ["sharing={}"],
    "fedavg+": [],
    "clustered_fl": ["sharing.eps1=10", "sharing.eps2=0.01"],
    "pfedme": [],
    "per_fedavg": [],
}


def frozen(model):
    return {n: t for n, t in model.state_dict().items() if ".base." in n}


@pytest.mark.parametrize("method", METHODS)
def test_adapters_combine_with_every_method_by_settings_alone(method, tmp_path):
    changes = [f"method={method}", *METHODS[method]]
    run = intarsia.run(ADAPTED, changes=changes, out=tmp_path / "r")
    assert run.summary["finished"]
    sent = Counter((r["client"], r["direction"]) for r in run.traffic if r["block"] == "frozen")
    expected = {} if method == "local" else {(name, "down"): 1 for name in run.clients}
    assert {key: n for key, n in sent.items() if n} == expected
    start, end = (run.client("client-00").model(round) for round in (run.summary["rounds"] - 1, None))
    assert has_adapters(end)
    assert all(torch.equal(t, frozen(start)[n]) for n, t in frozen(end).items())
    assert not torch.equal(
        start.state_dict()["conv1.adapter.weight"], end.state_dict()["conv1.adapter.weight"]
    )


def test_the_frozen_block_is_what_is_frozen_and_the_rest_is_shared(tmp_path):
    plan = intarsia.preview(ADAPTED)
    model = intarsia.preview(ADAPTED, changes=["adapters=none"])
    weights = 4 * 25 + 4 + 6 * 4 * 25 + 6
    assert plan["addresses"]["frozen@all"] == {"parameters": weights, "bytes": 4 * weights}
    adapters = 4 + 6 * 4
    for device in ("8x8", "4x4"):
        whole = model["addresses"][f"model@{device}"]["parameters"]
        assert plan["addresses"][f"model@{device}"]["parameters"] == whole - weights + adapters


def test_evaluation_does_not_fetch_the_frozen_block_again(tmp_path):
    run = intarsia.run(ADAPTED, out=tmp_path / "r")
    evaluated = [r for r in run.traffic if r["purpose"] == "evaluate" and r["block"] == "frozen"]
    assert evaluated == []


def test_adapters_are_the_same_on_workers_and_after_a_stop(tmp_path):
    one = intarsia.run(ADAPTED, out=tmp_path / "one")
    two = intarsia.run(ADAPTED, changes=["engine.name=local", "engine.workers=2"], out=tmp_path / "two")
    assert one.metrics == two.metrics


def test_several_sets_of_adapters_on_one_base(tmp_path):
    """Two tasks: adapters of each, one base, stored once."""
    changes = ["sharing.by=task", 'population.tasks=["digit","loops"]', 'population.generations=["8x8"]']
    run = intarsia.run(ADAPTED, changes=changes, out=tmp_path / "r")
    groups = {(r["block"], r["group"]) for r in run.traffic if r["block"]}
    assert groups == {("frozen", "all"), ("model", "digit"), ("model", "loops")}
    stored = [Block.from_bytes(p.read_bytes()) for p in (run.path / "state").rglob("*.safetensors")]
    assert sum("conv1.base.weight" in block.tensors for block in stored) == 1


class Normed(nn.Sequential):
    def __init__(self):
        super().__init__(
            nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(256, 10)
        )


@pytest.mark.parametrize("norms", ["shared", "statistics", "home"])
def test_norms_shared_or_at_home(norms, tmp_path):
    """At home, each client's statistics are its own; what is shared is the same for all."""
    changes = ['population.generations=["8x8"]', "sharing={}", f"sharing.norms={norms}", "adapters=none"]
    run = intarsia.run(ADAPTED, changes=changes, model=Normed(), out=tmp_path / "r")
    states = [run.client(name).model().state_dict() for name in run.clients[:2]]

    def same(name):
        return torch.equal(states[0][name], states[1][name])

    assert same("0.weight")
    assert same("1.running_mean") == (norms == "shared")
    assert same("1.weight") == (norms != "home")
    travelled = {r["block"] for r in run.traffic if r["block"]}
    assert travelled == {"model"}


def test_naive_fednova_makes_variances_negative_and_ours_does_not():
    """Clients with 1 and 9 steps whose running variance shrank: normalising it as a weight overshoots zero."""
    address = Address("model", "all")
    names = {"w": torch.zeros(1), "running_var": torch.full((1,), 1.0)}
    updates = [(1, 0.15), (9, 0.5)]

    def merged(buffers):
        present = Block(names, buffers)
        fold = Fold(Nova(), {address: present}, {address: 20})
        for steps, variance in updates:
            block = Block({"w": torch.zeros(1), "running_var": torch.tensor([variance])}, buffers)
            fold.add({address: block}, {address: present.layout}, 10, {"step_weight": float(steps)})
        return float(fold.finish()[address].tensors["running_var"])

    assert merged(frozenset()) < 0
    assert merged(frozenset({"running_var"})) == pytest.approx((0.15 + 0.5) / 2)
    assert Nova().name != Merge().name


def test_weights_from_a_file(tmp_path):
    source = Normed()
    nn.init.constant_(source[0].weight, 0.25)
    save_file(
        {**source.state_dict(), "4.weight": torch.ones(3, 256), "4.bias": torch.ones(3)},
        tmp_path / "w.safetensors",
    )
    missing = load_weights(model := Normed(), tmp_path / "w.safetensors")
    assert missing == ["4.weight", "4.bias"]
    assert float(model[0].weight.detach().min()) == 0.25
    other = {f"net.{n}": t for n, t in source.state_dict().items()}
    assert load_weights(Normed(), other, rename=lambda n: n.removeprefix("net.")) == []
    assert load_weights(Normed(), {"first": source[0].weight}, rename={"first": "0.weight"})[0] == "0.bias"
    with pytest.raises(intarsia.IntarsiaError, match="fits no weight"):
        load_weights(Normed(), other)
    with pytest.raises(intarsia.IntarsiaError, match=r"'0\.bias' has shape"):
        load_weights(Normed(), {"0.weight": source[0].weight, "0.bias": torch.ones(9)})
    with pytest.raises(intarsia.IntarsiaError, match="there is no file"):
        load_weights(Normed(), tmp_path / "none")
    (tmp_path / "bad").write_bytes(b"no")
    with pytest.raises(intarsia.IntarsiaError, match="is no safetensors file"):
        load_weights(Normed(), tmp_path / "bad")
    changes = [
        'population.generations=["8x8"]',
        "sharing={}",
        "training.lr=1e-30",
        f"weights={tmp_path / 'w.safetensors'}",
    ]
    run = intarsia.run(ADAPTED, changes=changes, model=Normed(), out=tmp_path / "r")
    assert float(run.client("client-00").model()[0].base.weight.min()) == 0.25
