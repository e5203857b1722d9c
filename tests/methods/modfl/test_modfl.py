"""ModFL against a slow implementation: who shares which half, what it costs, who comes later."""

from __future__ import annotations

import copy

import pytest
import torch

import intarsia
from intarsia.methods import METHODS
from tests.conftest import SMALL
from tests.methods.test_methods import LR, Net, close, mean, network, population, slow_client


def test_modfl(tmp_path):
    """Configuration modules are averaged by device, operation modules by cohort, across devices."""
    data = population((5, 12, 30, 8))
    where = {"c0": ("old", "north"), "c1": ("new", "north"), "c2": ("old", "south"), "c3": ("new", "south")}
    for name, (device, cohort) in where.items():
        data[name] |= {"device": device, "cohort": cohort}
    settings = {
        "rounds": 3,
        "method": "modfl",
        "training": {"lr": LR, "batch_size": 8, "epochs": 2},
        "engine": {"name": "debug", "device": "cpu"},
    }
    run = intarsia.run(settings, data=data, model=network(), out=tmp_path / "r")
    n = {name: float(len(d["train"][0])) for name, d in data.items()}

    def step(states: dict[str, Net], round: int) -> dict[str, Net]:
        done = {name: slow_client(states[name], data[name], name, round)[0] for name in data}
        new = {}
        for name in data:
            peers = [p for p in data if where[p][0] == where[name][0]]
            cohort = [p for p in data if where[p][1] == where[name][1]]
            inner = mean([done[p] for p in peers], [n[p] for p in peers], ["0.weight", "0.bias"])
            outer = mean([done[p] for p in cohort], [n[p] for p in cohort], ["2.weight", "2.bias"])
            new[name] = {**inner, **outer}
        return new

    states = {name: copy.deepcopy(dict(network().state_dict())) for name in data}
    for round in (1, 2, 3):
        states = step(states, round)
    for name in data:
        close(dict(run.client(name).model().state_dict()), states[name])
    assert {(r["block"], r["group"]) for r in run.traffic if r["block"]} == {
        ("configuration", "old"),
        ("configuration", "new"),
        ("operation", "north"),
        ("operation", "south"),
    }
    models = {run.client(name).model()[0].weight.sum().item() for name in data}
    assert (
        len(
            {
                tuple(
                    run.client(n).model().state_dict()["0.weight"].flatten().tolist()
                    + run.client(n).model().state_dict()["2.weight"].flatten().tolist()
                )
                for n in data
            }
        )
        == 4
    )
    assert len(models) == 2


def test_modfl_costs_both_modules_once_each_way_and_fedper_less_by_the_operation_module(tmp_path):
    common = ["rounds=2", "population.clients=8", "population.cohorts=2", "sharing.by=device"]
    modfl = intarsia.run(SMALL, changes=[*common, "method=modfl"], out=tmp_path / "m")
    fedper = intarsia.run(SMALL, changes=[*common, "method=fedper"], out=tmp_path / "p")
    model = modfl.client("client-00").model()
    operation = sum(t.numel() * 4 for k, t in model.state_dict().items() if k.startswith("head"))
    sizes = [sum(t.numel() * 4 for t in modfl.client(n).model().state_dict().values()) for n in modfl.clients]
    assert modfl.summary["bytes"] == {"up": 2 * sum(sizes), "down": 2 * sum(sizes)}
    assert modfl.summary["bytes"]["up"] - fedper.summary["bytes"]["up"] == 2 * 8 * operation


def test_modfls_networks():
    cifar = intarsia.models.ModularCNN().build((3, 32, 32), 9)
    stl = intarsia.models.ModularCNN(channels=(16, 32, 64, 128), pooling="max").build((3, 96, 96), 9)
    sharing = METHODS["modfl"]().sharing
    for model in (cifar, stl):
        blocks = sharing.cut(model).split(model)
        assert blocks["operation"].parameters == 41_737
        assert model(torch.zeros(2, *((3, 32, 32) if model is cifar else (3, 96, 96)))).shape == (2, 9)
    hapt = intarsia.models.ModularLSTM().build((128, 6), 5)
    assert hapt(torch.zeros(2, 128, 6)).shape == (2, 5)
    assert sharing.cut(hapt).split(hapt)["operation"].parameters == 16 * 16 + 16 + 16 * 5 + 5
    realworld = intarsia.models.ModularLSTM(units=24, features=(32, 16)).build((128, 6), 5)
    assert (
        sharing.cut(realworld).split(realworld)["operation"].layout
        == sharing.cut(hapt).split(hapt)["operation"].layout
    )
    with pytest.raises(intarsia.IntarsiaError, match="needs inputs"):
        intarsia.models.ModularLSTM().build((3, 8, 8), 5)
    with pytest.raises(intarsia.IntarsiaError, match="at least 8x8"):
        intarsia.models.ModularCNN(channels=(1, 2, 3, 4)).build((3, 4, 4), 5)


def test_a_new_generation_joins_and_learns_faster_than_from_scratch(tmp_path):
    """Generation 8x8 has trained; generation 4x4 comes with an input side of its own."""
    common = ["method=modfl", "sharing.operation=hidden2", "population.clients=40"]
    old = intarsia.run(
        "quickstart", changes=[*common, 'population.generations=["8x8"]', "rounds=30"], out=tmp_path / "old"
    )
    both = [*common, "rounds=5"]
    joined = intarsia.run("quickstart", changes=[*both, f"start_from={old.path}"], out=tmp_path / "joined")
    scratch = intarsia.run("quickstart", changes=both, out=tmp_path / "scratch")

    def new_ones(run, round):
        device = {name: run.client(name).info.device for name in run.clients}
        rows = [
            m["accuracy"]
            for m in run.metrics
            if m["round"] == round and m["stage"] == "own" and device[m["client"]] == "4x4"
        ]
        return sum(rows) / len(rows)

    assert new_ones(joined, 5) > new_ones(scratch, 5) + 0.1
    with pytest.raises(intarsia.IntarsiaError, match=r"start_from: .* has no block that fits"):
        intarsia.run("quickstart", changes=["method=fedavg", f"start_from={old.path}"], out=tmp_path / "no")
    with pytest.raises(intarsia.IntarsiaError, match="holds no run"):
        intarsia.run("quickstart", changes=["start_from=nowhere"], out=tmp_path / "no")
