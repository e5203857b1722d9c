"""FedGH against a slow implementation; the server's header really learns."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import intarsia
from intarsia.blocks import Block, Update
from intarsia.core import Refused, chance
from intarsia.methods.distilling import headed
from intarsia.methods.distilling.fedgh import FedGH
from tests.conftest import SMALL
from tests.methods import slow

EPOCHS, SIZE, RATE = 3, 4, 0.3
SETTINGS = [f"method.header_epochs={EPOCHS}", f"method.header_batch={SIZE}", f"method.header_lr={RATE}"]


def network(width: int = 5) -> nn.Module:
    torch.manual_seed(width)
    return nn.Sequential(nn.Linear(3, width), nn.Tanh(), nn.Linear(width, 4), nn.Tanh(), nn.Linear(4, 3))


def play(data, nets, rounds):
    """Header and extractors after some rounds, in plain torch: a mean a class, then the header on these."""
    header = nn.Linear(4, 3)
    header.load_state_dict(nets["c0"][4].state_dict())
    for round in range(1, rounds + 1):
        pairs = []
        for name, entry in data.items():
            net, (x, y) = nets[name], entry["train"]
            net[4].load_state_dict(header.state_dict())
            optimiser = torch.optim.SGD(net.parameters(), lr=slow.LR)
            for rows in slow.batches(len(y), name, round):
                optimiser.zero_grad()
                nn.functional.cross_entropy(net(x[rows]), y[rows]).backward()
                optimiser.step()
            with torch.no_grad():
                for label in range(3):
                    if (y == label).any():
                        pairs.append((net[:4](x[y == label]).mean(0), label))
        optimiser = torch.optim.SGD(header.parameters(), lr=RATE)
        order = chance.generator(0, "header", round, "all")
        for _ in range(EPOCHS):
            picked = torch.randperm(len(pairs), generator=order).tolist()
            for start in range(0, len(pairs), SIZE):
                some = [pairs[i] for i in picked[start : start + SIZE]]
                optimiser.zero_grad()
                loss = nn.functional.cross_entropy(
                    header(torch.stack([mean for mean, _ in some])),
                    torch.tensor([label for _, label in some]),
                )
                loss.backward()
                optimiser.step()
    return header


def test_against_a_slow_implementation(tmp_path):
    """Three different networks, whose last layers alone are alike."""
    data = slow.population()
    widths = {name: 5 + i for i, name in enumerate(data)}
    for name, entry in data.items():
        entry["model"] = f"w{widths[name]}"
    models = {f"w{w}": network(w) for w in widths.values()}
    run = slow.run(tmp_path / "r", "fedgh", data, *SETTINGS, model=models, rounds=2)
    nets = {name: network(w) for name, w in widths.items()}
    header = play(data, nets, 2)
    shared = slow.shared(run, "head@all")
    slow.close({k.removeprefix("head."): v for k, v in shared.items()}, slow.as_net(header.state_dict()))
    for name in data:
        own = slow.own(run, name)
        extractor = {k.removeprefix("extractor."): v for k, v in own.items() if k.startswith("extractor")}
        slow.close(extractor, slow.as_net(nets[name][:4].state_dict()))
        assert all(np.array_equal(own[k], shared[k]) for k in shared)
    assert {(r["block"], r["direction"]) for r in run.traffic if r["block"]} == {
        ("head", "down"),
        ("means", "up"),
    }


def test_the_server_really_trains_the_header(tmp_path):
    data = slow.population((30, 30, 30))
    run = slow.run(tmp_path / "r", "fedgh", data, model=network(), rounds=4)
    start = slow.as_net(network()[4].state_dict())
    assert not np.allclose(slow.shared(run, "head@all")["head.weight"], start["weight"], atol=1e-2)
    notes = [n for n in run.notes if n["kind"] == "header"]
    assert [n["round"] for n in notes] == [1, 2, 3, 4]
    assert all(n["after"] < n["before"] for n in notes)
    assert notes[0]["pairs"] == 9


def test_models_of_unlike_widths_get_a_layer_in_common(tmp_path):
    data = slow.population()
    for i, entry in enumerate(data.values()):
        entry["model"] = f"m{i}"
    models = {f"m{i}": nn.Sequential(nn.Linear(3, 3 + i), nn.ReLU(), nn.Linear(3 + i, 3)) for i in range(3)}
    with pytest.raises(intarsia.IntarsiaError, match="share head@all, but their blocks differ"):
        slow.run(tmp_path / "a", "fedgh", data, model=models)
    run = slow.run(tmp_path / "b", "fedgh", data, "method.features=6", model=models)
    assert slow.shared(run, "head@all")["head.weight"].shape == (3, 6)
    assert run.client("c2").model()(torch.zeros(2, 3)).shape == (2, 3)


def test_headers_of_groups_are_trained_apart(tmp_path):
    run = intarsia.run(SMALL, changes=["method=fedgh", "rounds=1"], out=tmp_path / "r")
    assert [n["address"] for n in run.notes] == ["head@4x4", "head@8x8"]


def test_parting_a_network_keeps_what_it_computes():
    model, x = network(), torch.randn(4, 3)
    parted = headed(model)
    torch.testing.assert_close(parted(x), model(x), rtol=0, atol=0)
    assert parted.extractor(x).shape == (4, 4)
    cnn = intarsia.models.CNN(channels=(2, 3), hidden=5).build((1, 8, 8), 10)
    assert headed(cnn).extractor(torch.zeros(2, 1, 8, 8)).shape == (2, 5)
    with pytest.raises(intarsia.IntarsiaError, match="Linear has no last part"):
        headed(nn.Linear(3, 3))
    with pytest.raises(intarsia.IntarsiaError, match="last part '2' of Sequential is a LayerNorm"):
        headed(nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.LayerNorm(3)), 4)


def test_a_stopped_run_goes_on_to_the_same_bits(tmp_path):
    data, changes = slow.population(), [*SETTINGS, "sampling.clients=2"]
    whole = slow.run(tmp_path / "whole", "fedgh", data, *changes, model=network(), rounds=4)
    with pytest.raises(KeyboardInterrupt):
        slow.run(tmp_path / "cut", "fedgh", data, *changes, model=network(), rounds=4, observer=slow.Stop(3))
    resumed = intarsia.resume(tmp_path / "cut", data=data, model=network())
    assert resumed.metrics == whole.metrics
    one, two = (slow.shared(run, "head@all") for run in (whole, resumed))
    assert all(np.array_equal(one[key], two[key]) for key in one)


def test_it_learns_the_digits(tmp_path):
    changes = ["method=fedgh", "rounds=15", "training.epochs=3"]
    run = intarsia.run(SMALL, changes=changes, out=tmp_path / "r")
    assert run.summary["accuracy"]["mean"] > 0.8


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({}, "differ in 'labels, means'"),
        ({"means": torch.zeros(2, 4)}, "differ in 'labels'"),
        ({"means": torch.zeros(2, 7), "labels": torch.tensor([0, 1])}, "cannot take"),
        ({"means": torch.full((2, 4), 3e38), "labels": torch.tensor([0, 1])}, "has values from 3e.38"),
        ({"means": torch.zeros(2, 4).double(), "labels": torch.tensor([0, 1])}, "is torch.float64"),
        ({"means": torch.zeros(2, 4), "labels": torch.tensor([0, 3])}, "possible are 0 to 2"),
        ({"means": torch.zeros(2, 4), "labels": torch.tensor([-1, 2])}, "possible are 0 to 2"),
        ({"means": torch.zeros(2, 4), "labels": torch.tensor([1, 1])}, "one label, and another one"),
        ({"means": torch.zeros(2, 4), "labels": torch.tensor([0])}, "one label, and another one"),
        ({"means": torch.zeros(2, 4), "labels": torch.zeros(2)}, "is torch.float32"),
    ],
)
def test_representations_that_cannot_be_used_are_refused(tensors, message):
    values = {"n": 4, "correct": 1, "loss": 0.5, "steps": 1, "step_weight": 1.0}
    update = Update(
        "r", 1, "train", "train", "c", "", {}, values, samples=4, tensors={"means": Block(tensors)}
    )
    model = headed(network())

    def check() -> None:
        FedGH().expects("train", slow.asked(model)).check(update)
        FedGH().check_reply(model, update)

    with pytest.raises(Refused, match=message):
        check()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("method.header_lr=0", "method.header_lr: input should be greater than 0"),
        ("method.header_epochs=0", "method.header_epochs: input should be"),
        ("method.features=-1", "method.features: input should be"),
        ("sharing=all", "sharing 'all' does not fit"),
    ],
)
def test_bad_settings(change, message, tmp_path):
    with pytest.raises(intarsia.IntarsiaError, match=message):
        slow.run(tmp_path / "r", "fedgh", slow.population(), change, model=network())
