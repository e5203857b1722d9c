"""FlexiFed: common layers of hand-made models, and rounds against a slow implementation."""

from __future__ import annotations

from collections import OrderedDict

import numpy as np
import pytest
import torch
from torch import nn

import intarsia
from intarsia.data import ClientInfo
from intarsia.methods.flexifed import CommonLayers, common_layers
from intarsia.models import ClubCNN, layers_of
from tests.conftest import SMALL
from tests.methods import slow


def net(**layers: nn.Module) -> nn.Module:
    return nn.Sequential(OrderedDict(layers))


def models() -> dict[str, nn.Module]:
    """A and B begin with the same two layers, C with the first of them."""
    torch.manual_seed(4)
    return {
        "A": net(one=nn.Linear(3, 4), act=nn.Tanh(), two=nn.Linear(4, 4), head=nn.Linear(4, 3)),
        "B": net(one=nn.Linear(3, 4), two=nn.Linear(4, 4), three=nn.Linear(4, 5), head=nn.Linear(5, 3)),
        "C": net(one=nn.Linear(3, 4), two=nn.Linear(4, 6), head=nn.Linear(6, 3)),
    }


HOLDS = {"c0": "A", "c1": "A", "c2": "B", "c3": "B", "c4": "C"}


def sharers(variant: str, client: str, layer: int) -> list[str]:
    """Who shares a client's layer, written out by hand."""
    if layer == 1:
        return list(HOLDS)
    if variant == "basic":
        return [client]
    if variant == "max" and layer == 2 and client != "c4":
        return ["c0", "c1", "c2", "c3"]
    return [other for other in HOLDS if HOLDS[other] == HOLDS[client]]


def infos(holds=HOLDS, **about):
    return {c: ClientInfo(c, (3,), {"train": 1}, model=m, **about.get(c, {})) for c, m in holds.items()}


def groups(variant, holds=HOLDS, made=None, by="", **about):
    made = made or models()
    clients = [(info, made[info.model]) for info in infos(holds, **about).values()]
    return CommonLayers(variant=variant, by=by).groups_by_model(clients)


@pytest.mark.parametrize("variant", ["basic", "clustered", "max"])
def test_common_layers_of_hand_made_models(variant):
    found = groups(variant)
    depth = {"A": 3, "B": 4, "C": 3}
    assert {block: set(of) for block, of in found.items()} == {
        f"layer-{n}": {c for c in HOLDS if depth[HOLDS[c]] >= n} for n in (1, 2, 3, 4)
    }
    for client, model in HOLDS.items():
        for n in range(1, depth[model] + 1):
            group = found[f"layer-{n}"][client]
            mates = sharers(variant, client, n)
            assert (group == "me") == (len(mates) == 1)
            if group != "me":
                assert [c for c, other in found[f"layer-{n}"].items() if other == group] == mates
    assert set(found["layer-1"].values()) == {"all"}


def test_models_that_share_nothing_average_within_an_architecture():
    zoo = {f"CNN{n}": ClubCNN(number=n).build((3, 32, 32), 10) for n in (1, 2, 3, 4)}
    assert common_layers([tuple(x.form for x in layers_of(m)) for m in zoo.values()]) == 0
    holds = {f"c{i}": f"CNN{i % 4 + 1}" for i in range(8)}
    assert {g for of in groups("basic", holds, zoo).values() for g in of.values()} == {"me"}
    for variant in ("clustered", "max"):
        for of in groups(variant, holds, zoo).values():
            for client, group in of.items():
                assert [c for c in of if of[c] == group] == [c for c in of if holds[c] == holds[client]]


def test_one_architecture_is_shared_by_everyone_and_by_divides_it():
    holds = dict.fromkeys(HOLDS, "A")
    for variant in ("basic", "clustered", "max"):
        assert {g for of in groups(variant, holds).values() for g in of.values()} == {"all"}
    devices = {c: {"device": "old" if c in ("c0", "c2") else "new"} for c in HOLDS}
    found = groups("max", by="device", **devices)
    assert found["layer-1"] == {c: devices[c]["device"] for c in HOLDS}
    assert found["layer-2"]["c0"] == found["layer-2"]["c2"] == "old"
    assert found["layer-2"]["c1"] == found["layer-2"]["c3"] != "new"
    assert found["layer-2"]["c1"].startswith("new/prefix-")


def test_what_makes_layers_alike():
    def chain(model):
        return [layer.form for layer in layers_of(model)]

    conv = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2))
    assert len(chain(conv)) == 2
    assert chain(conv) == chain(nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2)))
    other = chain(nn.Sequential(nn.Conv2d(1, 2, 3, stride=2), nn.BatchNorm2d(2)))
    assert other[0] != chain(conv)[0]
    assert other[1] == chain(conv)[1]
    frozen = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2)).requires_grad_(False)
    assert chain(frozen)[0] != chain(conv)[0]


def local(model, w, entry, name, round):
    """Train in torch, float64; return the layers' weights."""
    model = model.double()
    model.load_state_dict(w)
    x, y = entry["train"][0].double(), entry["train"][1]
    for rows in slow.batches(len(y), name, round):
        loss = nn.functional.cross_entropy(model(x[rows]), y[rows])
        gradients = torch.autograd.grad(loss, list(model.parameters()))
        with torch.no_grad():
            for weight, gradient in zip(model.parameters(), gradients, strict=True):
                weight -= slow.LR * gradient
    return {k: t.clone() for k, t in model.state_dict().items()}


def play(data, variant, rounds, start):
    n = slow.samples(data)
    own = {c: {k: t.double() for k, t in start[c].items()} for c in HOLDS}
    for round in range(1, rounds + 1):
        done = {c: local(models()[HOLDS[c]], own[c], data[c], c, round) for c in HOLDS}
        for client in HOLDS:
            for key in done[client]:
                layer = 1 + list(dict.fromkeys(k.split(".")[0] for k in done[client])).index(
                    key.split(".")[0]
                )
                mates = sharers(variant, client, layer)
                own[client][key] = sum(n[c] * done[c][key] for c in mates) / sum(n[c] for c in mates)
    return own


@pytest.mark.parametrize("variant", ["basic", "clustered", "max"])
def test_against_a_slow_implementation(variant, tmp_path):
    data = slow.population((5, 9, 14, 6, 7))
    for client, model in HOLDS.items():
        data[client]["model"] = model
    run = slow.run(tmp_path / "r", "flexifed", data, f"sharing.variant={variant}", rounds=2, model=models())
    setup = run.experiment.setup
    start = {c: setup.template(c).initial for c in HOLDS}
    first = {
        c: {k: t for block in blocks.values() for k, t in block.tensors.items()}
        for c, blocks in start.items()
    }
    expected = play(data, variant, 2, first)
    for client in HOLDS:
        slow.close(slow.own(run, client), slow.as_net(expected[client]))
    kept = run.state().clients["c4"].state["private"].keys()
    assert kept == {"layer-2", "layer-3"}
    addresses = {str(a) for a in run.state().pool}
    assert "layer-1@all" in addresses
    assert len(addresses) == {"basic": 1, "clustered": 1 + 2 + 3, "max": 1 + 1 + 1 + 2}[variant]


def test_without_a_common_layer_basic_is_local_training(tmp_path):
    data = slow.population((5, 9))
    data["c0"]["model"], data["c1"]["model"] = "four", "five"
    nets = {k: net(one=nn.Linear(3, n), head=nn.Linear(n, 3)) for k, n in (("four", 4), ("five", 5))}
    one = slow.run(tmp_path / "flexifed", "flexifed", data, "sharing.variant=basic", model=nets)
    two = slow.run(tmp_path / "local", "local", data, model=nets)
    assert [r["accuracy"] for r in one.metrics] == [r["accuracy"] for r in two.metrics]
    assert one.summary["bytes"] == two.summary["bytes"]


def test_a_stopped_run_goes_on_to_the_same_bits(tmp_path):
    data = slow.population((5, 9, 14, 6, 7))
    for client, model in HOLDS.items():
        data[client]["model"] = model
    whole = slow.run(tmp_path / "whole", "flexifed", data, "sampling.clients=3", rounds=4, model=models())
    with pytest.raises(KeyboardInterrupt):
        slow.run(
            tmp_path / "cut",
            "flexifed",
            data,
            "sampling.clients=3",
            rounds=4,
            model=models(),
            observer=slow.Stop(3),
        )
    resumed = intarsia.resume(tmp_path / "cut", data=data, model=models())
    assert resumed.metrics == whole.metrics
    for name in data:
        one, two = slow.own(whole, name), slow.own(resumed, name)
        assert all(np.array_equal(one[key], two[key]) for key in one)


def test_it_learns_with_different_depths(tmp_path):
    def deeper(client: intarsia.ClientInfo) -> nn.Module:
        hidden = [nn.Linear(16, 16), nn.ReLU()] if client.cohort.endswith("0") else []
        side = client.shape[-1]
        return nn.Sequential(nn.Flatten(), nn.Linear(side * side, 16), nn.ReLU(), *hidden, nn.Linear(16, 10))

    run = intarsia.run(
        SMALL, changes=["method=flexifed", "rounds=12", "training.epochs=3"], model=deeper, out=tmp_path / "r"
    )
    assert run.summary["accuracy"]["mean"] > 0.6
    shared = {row["block"] for row in run.traffic if row["block"]}
    assert shared >= {"layer-1", "layer-2"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("sharing.variant=all", "sharing.variant: input should be 'basic', 'clustered' or 'max'"),
        ("sharing.varient=max", "sharing.varient: unknown setting; did you mean 'variant'"),
        ("cut.model=*", "needs blocks"),
    ],
)
def test_bad_settings(change, message, tmp_path):
    with pytest.raises(intarsia.IntarsiaError, match=message):
        slow.run(tmp_path / "r", "flexifed", slow.population(), change)
