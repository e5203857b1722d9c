"""FedMD against a slow implementation; what travels, and what is refused."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import intarsia
from intarsia.blocks import Block, Update
from intarsia.core import Refused, chance
from intarsia.data import Examples
from intarsia.methods.distilling.fedmd import FedMD
from tests.conftest import NEEDS, SMALL, failures
from tests.methods import slow

SUBSET, DIGESTS = 7, 2
SETTINGS = [
    f"method.subset={SUBSET}",
    f"method.digest_epochs={DIGESTS}",
    f"method.digest_batch={slow.SIZE}",
]


def scores(w, x):
    return x @ w["weight"].T + w["bias"]


def towards(w, x, target):
    """Of the mean absolute error over samples and classes."""
    off = np.sign(scores(w, x) - target) / target.size
    return {"weight": off.T @ x, "bias": off.sum(0)}


def descend(w, x, y, batches):
    for rows in batches:
        w = slow.plus(w, slow.gradient(w, x[rows], y[rows]), -slow.LR)
    return w


def play(data, public, rounds, pretraining=0):
    nets = {name: slow.start() for name in data}
    x, y = public.x.double().numpy(), public.y.numpy()
    for round in range(1, rounds + 1):
        if round == 1 and pretraining:
            for name in data:
                order = slow.batches(len(y), name, 1, "transfer", pretraining)
                nets[name] = descend(nets[name], x, y, order)
                own = slow.arrays(data[name])
                order = slow.batches(len(own[1]), name, 1, "transfer to own", pretraining)
                nets[name] = descend(nets[name], *own, order)
        picked = torch.randperm(len(y), generator=chance.generator(0, "public", round)).numpy()[:SUBSET]
        consensus = sum(scores(net, x[picked]) for net in nets.values()) / len(nets)
        for name in data:
            for rows in slow.batches(len(picked), name, round, "digest", DIGESTS):
                step = towards(nets[name], x[picked][rows], consensus[rows])
                nets[name] = slow.plus(nets[name], step, -slow.LR)
            own = slow.arrays(data[name])
            nets[name] = descend(nets[name], *own, slow.batches(len(own[1]), name, round))
    return nets


@pytest.mark.parametrize("pretraining", [0, 2])
def test_against_a_slow_implementation(pretraining, tmp_path):
    data = slow.population()
    given = slow.with_public(data)
    run = slow.run(tmp_path / "r", "fedmd", given, *SETTINGS, f"method.pretraining={pretraining}", rounds=2)
    nets = play(data, given.public, 2, pretraining)
    for name in data:
        slow.close(slow.own(run, name), nets[name])
    alone = slow.run(tmp_path / "alone", "local", given, rounds=2)
    assert not np.allclose(slow.own(alone, "c0")["weight"], nets["c0"]["weight"], atol=1e-3)


def test_public_data_travels_once_and_models_never(tmp_path):
    given = slow.with_public(slow.population())
    run = slow.run(tmp_path / "r", "fedmd", given, *SETTINGS)
    rows = [r for r in run.traffic if r["client"] == "c0" and r["block"]]
    assert {r["block"] for r in rows} == {"public", "scores", "consensus"}
    assert [(r["round"], r["bytes"]) for r in rows if r["block"] == "public"] == [(1, 11 * (3 * 4 + 8))]
    up = [(r["round"], r["bytes"]) for r in rows if r["direction"] == "up"]
    assert up == [(r, SUBSET * 3 * 4) for r in (1, 2, 3)]
    down = [(r["round"], r["bytes"]) for r in rows if r["block"] == "consensus"]
    assert down == up


def test_labels_of_public_data_are_used_for_transfer_learning_alone(tmp_path):
    given = slow.with_public(slow.population())
    other = replace(given, public=replace(given.public, y=(given.public.y + 1) % 3))
    for pretraining, same in ((0, True), (1, False)):
        change = f"method.pretraining={pretraining}"
        one = slow.run(tmp_path / f"one{pretraining}", "fedmd", given, change)
        two = slow.run(tmp_path / f"two{pretraining}", "fedmd", other, change)
        assert (one.metrics == two.metrics) is same


def unlike(client: intarsia.ClientInfo) -> nn.Module:
    """Another network for every client."""
    width = 2 + int(client.name[1:])
    return nn.Sequential(nn.Linear(3, width), nn.Tanh(), nn.Linear(width, 3))


def test_clients_with_different_models_teach_each_other(tmp_path):
    """A client sees one class alone; what it knows of the others comes from the consensus."""
    data = slow.population((60, 60, 60))
    for i, entry in enumerate(data.values()):
        x, _ = entry["train"]
        y = x.argmax(1)
        kept = torch.arange(len(y)) if i else y == 0
        entry |= {"train": (x[kept], y[kept]), "test": (x, y), "model": f"m{i}"}
    models = {f"m{i}": unlike(intarsia.ClientInfo(f"c{i}", (3,), {})) for i in range(3)}
    given = slow.with_public(data, 90)
    changes = ["method.digest_epochs=10", "method.digest_batch=8", "training.epochs=1"]

    def accuracy(method: str, *more: str) -> float:
        run = slow.run(tmp_path / method, method, given, *more, model=models, rounds=20)
        return next(
            r["accuracy"] for r in run.metrics if (r["round"], r["client"], r["split"]) == (20, "c0", "test")
        )

    assert accuracy("fedmd", *changes) > accuracy("local", "training.epochs=1") + 0.2


def test_a_stopped_run_goes_on_to_the_same_bits(tmp_path):
    data = slow.with_public(slow.population())
    changes = [*SETTINGS, "sampling.clients=2", "method.pretraining=1"]
    whole = slow.run(tmp_path / "whole", "fedmd", data, *changes, rounds=4)
    with pytest.raises(KeyboardInterrupt):
        slow.run(tmp_path / "cut", "fedmd", data, *changes, rounds=4, observer=slow.Stop(3))
    resumed = intarsia.resume(tmp_path / "cut", data=data, model=slow.linear())
    assert resumed.metrics == whole.metrics
    for name in data.clients:
        one, two = slow.own(whole, name), slow.own(resumed, name)
        assert all(np.array_equal(one[key], two[key]) for key in one)


def test_it_learns_the_digits(tmp_path):
    changes = ["method=fedmd", "rounds=12", "training.epochs=3", "method.pretraining=2", *NEEDS["fedmd"]]
    run = intarsia.run(SMALL, changes=changes, out=tmp_path / "r")
    assert run.summary["accuracy"]["mean"] > 0.85


def test_scores_of_another_shape_are_left_out(tmp_path):
    """A client with more classes than the others is not heard, and says that the consensus does not fit."""
    data = slow.population()
    data["c0"]["model"] = "wide"
    for name in ("c1", "c2"):
        data[name]["model"] = "usual"
    models = {"wide": nn.Linear(3, 4), "usual": nn.Linear(3, 3)}
    run = slow.run(tmp_path / "r", "fedmd", slow.with_public(data), model=models, rounds=1)
    assert [(n["kind"], n["client"], n["shape"]) for n in run.notes] == [("left out", "c0", [11, 4])]
    assert [(e["client"], e["kind"]) for e in failures(run)] == [("c0", "failed")]
    assert "the consensus is about 3 classes, this client's model about 4" in run.events[0]["message"]


@pytest.mark.parametrize(
    "tensor",
    [
        torch.zeros(3),
        torch.zeros(0, 3),
        torch.zeros(2, 3, dtype=torch.long),
        torch.zeros(2, 4),
        torch.zeros(3, 3),
        torch.zeros(2, 3).double(),
        torch.full((2, 3), 3e38),
        torch.full((2, 3), math.nan),
    ],
)
def test_what_is_no_table_of_scores_is_refused(tensor):
    update = Update(
        "r", 1, "predict", "train", "c", "", {}, {}, samples=1, tensors={"scores": Block({"scores": tensor})}
    )
    with pytest.raises(Refused, match="tensor 'scores'"):
        FedMD().expects("predict", slow.asked(nn.Linear(3, 3), public=2)).check(update)


def test_public_data_that_cannot_be_used(tmp_path):
    data = slow.population()
    with pytest.raises(
        intarsia.IntarsiaError, match=r"this method needs public data: set population\.public"
    ):
        slow.run(tmp_path / "a", "fedmd", data)
    given = slow.with_public(data)
    wide = replace(given, public=Examples(torch.zeros(5, 4), torch.zeros(5, dtype=torch.long)))
    with pytest.raises(intarsia.IntarsiaError, match=r"inputs of shape \[4\], client 'c0' has \[3\]"):
        slow.run(tmp_path / "b", "fedmd", wide)
    odd = replace(given, public=replace(given.public, y=given.public.y + 3))
    with pytest.raises(intarsia.IntarsiaError, match="needs public labels of the clients' 3 classes"):
        slow.run(tmp_path / "c", "fedmd", odd, "method.pretraining=1")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("method.subset=0", "method.subset: input should be greater than or equal to 1"),
        ("method.digest_batch=0", "method.digest_batch: input should be"),
        ("method.pretraining=-1", "method.pretraining: input should be"),
        ("method.digests=2", "method.digests: unknown setting; did you mean 'digest_"),
    ],
)
def test_bad_settings(change, message, tmp_path):
    with pytest.raises(intarsia.IntarsiaError, match=message):
        slow.run(tmp_path / "r", "fedmd", slow.with_public(slow.population()), change)


def test_digits_of_several_sensors_have_no_public_share(tmp_path):
    with pytest.raises(intarsia.IntarsiaError, match=r"population.public: .* one of population.generations"):
        intarsia.run(SMALL, changes=["method=fedmd", "population.public=0.2"], out=tmp_path / "r")
