"""FedKEMF against a slow implementation in plain torch; what travels, and what is refused."""

from __future__ import annotations

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import intarsia
from intarsia.blocks import Code
from intarsia.blocks.codecs import TopK
from intarsia.core import chance, part
from intarsia.data import Examples
from intarsia.methods.distilling.fedkemf import FedKEMF
from tests.conftest import NEEDS, SMALL
from tests.methods import slow

MUTUAL, EPOCHS, SIZE, RATE = 0.6, 2, 4, 0.3
SETTINGS = [
    "method.knowledge={name='mlp',hidden=[4]}",
    f"method.mutual={MUTUAL}",
    f"method.server_epochs={EPOCHS}",
    f"method.server_batch={SIZE}",
    f"method.server_lr={RATE}",
]


def network(width: int = 5) -> nn.Module:
    torch.manual_seed(width)
    return nn.Sequential(nn.Linear(3, width), nn.Tanh(), nn.Linear(width, 3))


def kl(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    """Of probabilities, written out."""
    return (p * (p / q).log()).sum(1).mean()


def learn(own, knowledge, entry, name, round):
    x, y = entry["train"]
    one, two = (torch.optim.SGD(net.parameters(), lr=slow.LR) for net in (own, knowledge))
    for rows in slow.batches(len(y), name, round):
        p, q = own(x[rows]).softmax(1), knowledge(x[rows]).softmax(1)
        hits = torch.arange(len(rows)), y[rows]
        first = -p[hits].log().mean() + MUTUAL * kl(q.detach(), p)
        second = -q[hits].log().mean() + MUTUAL * kl(p.detach(), q)
        for optimiser, loss in ((one, first), (two, second)):
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()


def fuse(members, weights, public, round, ensemble):
    """The weighted mean of the members, then trained to say what they say together."""
    states = [m.state_dict() for m in members]
    mean = {
        k: sum(w * s[k].double() for w, s in zip(weights, states, strict=True)) / sum(weights)
        for k in states[0]
    }
    fused = copy.deepcopy(members[0])
    fused.load_state_dict(mean)
    with torch.no_grad():
        said = [m(public.x) for m in members]
        total = sum(said) / len(said)
        teacher = (total if ensemble == "mean" else torch.stack(said).max(0).values).softmax(1)
    optimiser = torch.optim.SGD(fused.parameters(), lr=RATE)
    order = chance.generator(0, "fusion", round, "all")
    for _ in range(EPOCHS):
        picked = torch.randperm(len(public), generator=order)
        for start in range(0, len(public), SIZE):
            rows = picked[start : start + SIZE]
            optimiser.zero_grad()
            kl(teacher[rows], fused(public.x[rows]).softmax(1)).backward()
            optimiser.step()
    return fused


def inside(net: dict[str, np.ndarray], part: str) -> slow.Net:
    return {k.removeprefix(f"{part}."): v for k, v in net.items() if k.startswith(f"{part}.")}


@pytest.mark.parametrize("ensemble", ["mean", "max"])
def test_against_a_slow_implementation(ensemble, tmp_path):
    """Three different networks, and one knowledge network."""
    data = slow.population()
    widths = {name: 4 + i for i, name in enumerate(data)}
    for name, entry in data.items():
        entry["model"] = f"w{widths[name]}"
    models = {f"w{w}": network(w) for w in widths.values()}
    given = slow.with_public(data)
    changes = [*SETTINGS, f"method.ensemble={ensemble}"]
    run = slow.run(tmp_path / "r", "fedkemf", given, *changes, model=models, rounds=2)
    template = run.experiment.setup.template("c0").model
    knowledge = copy.deepcopy(template.knowledge)
    start = run.initial_blocks()["w4"]["knowledge"]
    knowledge.load_state_dict({k.removeprefix("knowledge."): v for k, v in start.tensors.items()})
    own = {name: network(w) for name, w in widths.items()}
    for round in (1, 2):
        members = {name: copy.deepcopy(knowledge) for name in data}
        for name in data:
            learn(own[name], members[name], data[name], name, round)
        weights = [float(n) for n in slow.samples(data).values()]
        knowledge = fuse(list(members.values()), weights, given.public, round, ensemble)
    shared = inside(slow.shared(run, "knowledge@all"), "knowledge")
    slow.close(shared, slow.as_net(knowledge.state_dict()))
    for name in data:
        slow.close(inside(slow.own(run, name), "own"), slow.as_net(own[name].state_dict()))
    assert {r["block"] for r in run.traffic if r["block"]} == {"knowledge"}


@part
class Watched(FedKEMF):
    """Checks, before the networks are fused, that their mean is coded against what was sent, and nothing else."""

    def _fuse(self, server, public, address, member, replies):
        mean = server.merged("knowledge", replies)
        coded, _ = Code.next(TopK(share=0.1), mean, server.pool.sent.get(address), None)
        assert server.pool.get(address).version == coded.version
        server.note("watched")
        super()._fuse(server, public, address, member, replies)


def test_no_code_outlives_the_network_that_it_leads_to(tmp_path):
    """With `codec.down`, what the mean of a round lost in its code is not added to the mean of the next one."""
    changes = ["codec={name='topk',share=0.1,down=true}"]
    method = Watched(knowledge={"name": "mlp", "hidden": [4]}, server_batch=SIZE, server_lr=RATE)
    given = slow.with_public(slow.population())
    run = slow.run(tmp_path / "r", method, given, *changes, model=network(), rounds=3)
    state = run.state()
    assert sum(note["kind"] == "watched" for note in run.notes) == 3
    assert all(code.version == state.pool.version(address) for address, code in state.codes.items())


def test_an_ensemble_by_hand():
    members = [torch.tensor([[1.0, 4.0]]), torch.tensor([[3.0, -2.0]])]
    assert FedKEMF().teach(members).tolist() == [[2, 1]]
    assert FedKEMF(ensemble="max").teach(members).tolist() == [[3, 4]]


def test_distillation_brings_the_mean_nearer_to_the_ensemble(tmp_path):
    data = slow.population((30, 30, 30))
    run = slow.run(tmp_path / "r", "fedkemf", slow.with_public(data, 60), *SETTINGS, model=network())
    notes = [n for n in run.notes if n["kind"] == "fusion"]
    assert [n["members"] for n in notes] == [3, 3, 3]
    assert all(n["after"] < n["before"] for n in notes)


def test_labels_of_public_data_are_not_used(tmp_path):
    given = slow.with_public(slow.population())
    other = replace(given, public=replace(given.public, y=(given.public.y + 1) % 3))
    one = slow.run(tmp_path / "one", "fedkemf", given, *SETTINGS, model=network())
    two = slow.run(tmp_path / "two", "fedkemf", other, *SETTINGS, model=network())
    assert one.metrics == two.metrics


def test_norms_of_the_knowledge_network_travel_or_stay(tmp_path):
    data = {
        f"c{i}": {
            split: (torch.randn(9, 1, 8, 8, generator=torch.Generator().manual_seed(i)), torch.arange(9) % 3)
            for split in ("train", "test")
        }
        for i in range(3)
    }
    public = Examples(
        torch.randn(9, 1, 8, 8, generator=torch.Generator().manual_seed(7)), torch.zeros(9).long()
    )
    given = replace(intarsia.from_dict(data), public=public)
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 3))
    for norms in ("shared", "home"):
        changes = [
            "method.knowledge=resnet",
            f"sharing.norms={norms}",
            "training.batch_size=4",
            "method.server_batch=4",
        ]
        run = slow.run(tmp_path / norms, "fedkemf", given, *changes, model=net, rounds=2)
        assert run.summary["failed"] == 0
        names = slow.shared(run, "knowledge@all")
        assert any("running_mean" in name for name in names) is (norms == "shared")


def test_a_stopped_run_goes_on_to_the_same_bits(tmp_path):
    data, changes = slow.with_public(slow.population()), [*SETTINGS, "sampling.clients=2"]
    whole = slow.run(tmp_path / "whole", "fedkemf", data, *changes, model=network(), rounds=4)
    with pytest.raises(KeyboardInterrupt):
        slow.run(
            tmp_path / "cut", "fedkemf", data, *changes, model=network(), rounds=4, observer=slow.Stop(3)
        )
    resumed = intarsia.resume(tmp_path / "cut", data=data, model=network())
    assert resumed.metrics == whole.metrics
    one, two = (slow.shared(run, "knowledge@all") for run in (whole, resumed))
    assert all(np.array_equal(one[key], two[key]) for key in one)


def test_it_learns_the_digits(tmp_path):
    changes = ["method=fedkemf", "rounds=12", "training.epochs=3", *NEEDS["fedkemf"]]
    run = intarsia.run(SMALL, changes=changes, out=tmp_path / "r")
    assert run.summary["accuracy"]["mean"] > 0.85


def test_it_needs_public_data_that_fits(tmp_path):
    data = slow.population()
    with pytest.raises(intarsia.IntarsiaError, match="this method needs public data"):
        slow.run(tmp_path / "a", "fedkemf", data, model=network())
    wide = replace(intarsia.from_dict(data), public=Examples(torch.zeros(5, 4), torch.zeros(5).long()))
    with pytest.raises(intarsia.IntarsiaError, match=r"inputs of shape \[4\], client 'c0' has \[3\]"):
        slow.run(tmp_path / "b", "fedkemf", wide, model=network())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("method.knowledge=cmn", "method.knowledge: there is no 'cmn'; did you mean 'cnn'"),
        ("method.knowledge={name='mlp',hiden=[3]}", "method.knowledge.hiden: unknown setting; did you mean"),
        ("method.mutual=-1", "method.mutual: input should be greater than or equal to 0"),
        ("method.ensemble=vote", "method.ensemble: input should be 'mean' or 'max'"),
        ("sharing=all", "sharing 'all' does not"),
    ],
)
def test_bad_settings(change, message, tmp_path):
    with pytest.raises(intarsia.IntarsiaError, match=message):
        slow.run(tmp_path / "r", "fedkemf", slow.with_public(slow.population()), change, model=network())
