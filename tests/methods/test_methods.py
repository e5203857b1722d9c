"""Every method against an independent slow implementation in plain torch, and by a smoke run."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import intarsia
from intarsia.blocks import Address, Block, Pool, Update
from intarsia.core import SettingsError, chance
from intarsia.federation import Sampling
from intarsia.methods import METHODS, Addresses, ClientModel, Sent, Server, SharedBlocks
from intarsia.methods.fednova import Nova
from intarsia.methods.modfl.cohorts import cluster
from tests.conftest import NEEDS, SMALL

LR, MU, RHO = 0.1, 0.3, 0.5
Net = dict[str, torch.Tensor]


def population(sizes: tuple[int, ...] = (5, 12, 30)) -> dict[str, dict[str, Any]]:
    made = {}
    for i, n in enumerate(sizes):
        source = torch.Generator().manual_seed(i)
        x, y = torch.randn(n + 4, 3, generator=source), torch.randint(0, 3, (n + 4,), generator=source)
        made[f"c{i}"] = {"train": (x[:n], y[:n]), "test": (x[n:], y[n:])}
    return made


def network() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3))


def slow_client(
    state: Net,
    data: Any,
    name: str,
    round: int,
    *,
    purpose: str = "batches",
    mu: float = 0.0,
    rho: float = 0.0,
    anchor: Net | None = None,
    epochs: int = 2,
) -> tuple[Net, int]:
    """Train as the papers say, with torch's own optimiser and nothing of ours but the keyed order."""
    model = network()
    model.load_state_dict(state)
    optimiser = torch.optim.SGD(model.parameters(), lr=LR, momentum=rho)
    x, y = data["train"]
    order = chance.generator(0, purpose, round, name)
    steps = 0
    for _ in range(epochs):
        picked = torch.randperm(len(x), generator=order)
        for start in range(0, len(x), 8):
            rows = picked[start : start + 8]
            loss = nn.functional.cross_entropy(model(x[rows]), y[rows])
            for key, weight in model.named_parameters():
                if anchor is not None and key in anchor:
                    loss = loss + mu / 2 * ((weight - anchor[key]) ** 2).sum()
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            steps += 1
    return {k: v.detach().clone() for k, v in model.state_dict().items()}, steps


def mean(states: list[Net], weights: list[float], keys: Any) -> Net:
    total = sum(weights)
    return {
        k: sum(w * s[k].double() for s, w in zip(states, weights, strict=True)).div(total).float()
        for k in keys
    }


def ours(tmp_path: Any, method: str, *changes: str) -> tuple[intarsia.Run, dict[str, Net]]:
    settings = {
        "rounds": 3,
        "method": method,
        "training": {"lr": LR, "batch_size": 8, "epochs": 2},
        "engine": {"name": "debug", "device": "cpu"},
    }
    run = intarsia.run(settings, data=population(), model=network(), changes=changes, out=tmp_path / "r")
    return run, {name: dict(run.client(name).model().state_dict()) for name in run.clients}


def close(mine: Net, reference: Net) -> None:
    assert mine.keys() == reference.keys()
    for key, tensor in reference.items():
        torch.testing.assert_close(mine[key], tensor, rtol=2e-4, atol=1e-5)


def play(step: Callable[[dict[str, Net], int], dict[str, Net]]) -> dict[str, Net]:
    start = dict(network().state_dict())
    states = {name: copy.deepcopy(start) for name in population()}
    for round in (1, 2, 3):
        states = step(states, round)
    return states


def averaged(mu: float = 0.0, keys: list[str] | None = None) -> dict[str, Net]:
    data = population()
    weights = [float(len(d["train"][0])) for d in data.values()]

    def step(states: dict[str, Net], round: int) -> dict[str, Net]:
        shared = list(next(iter(states.values()))) if keys is None else keys
        done = {}
        for name, entry in data.items():
            anchor = {k: states[name][k] for k in shared}
            done[name], _ = slow_client(
                states[name], entry, name, round, mu=mu, anchor=anchor if mu else None
            )
        common = mean(list(done.values()), weights, shared)
        return {name: {**state, **common} for name, state in done.items()}

    return play(step)


def test_fedavg(tmp_path):
    _, models = ours(tmp_path, "fedavg")
    reference = averaged()
    for name, model in models.items():
        close(model, reference[name])


def test_fedprox(tmp_path):
    _, models = ours(tmp_path, "fedprox", f"objective.mu={MU}")
    reference = averaged(mu=MU)
    for name, model in models.items():
        close(model, reference[name])
    plain = averaged()["c0"]
    assert not torch.allclose(models["c0"]["0.weight"], plain["0.weight"], rtol=2e-4, atol=1e-5)


def test_fedper(tmp_path):
    run, models = ours(tmp_path, "fedper")
    reference = averaged(keys=["0.weight", "0.bias"])
    for name, model in models.items():
        close(model, reference[name])
    assert not torch.equal(models["c0"]["2.weight"], models["c1"]["2.weight"])
    assert {row["block"] for row in run.traffic} == {"base", ""}


def test_local(tmp_path):
    run, models = ours(tmp_path, "local")
    data = population()
    reference = play(lambda states, r: {n: slow_client(states[n], data[n], n, r)[0] for n in states})
    for name, model in models.items():
        close(model, reference[name])
    assert sum(row["bytes"] for row in run.traffic) == 0


def test_fedavg_plus_tunes_a_copy_of_the_shared_model(tmp_path):
    run, models = ours(tmp_path, "fedavg+", "method.tuning_epochs=2")
    shared = averaged()
    data = population()
    for name, model in models.items():
        tuned, _ = slow_client(shared[name], data[name], name, 3, purpose="tuning", epochs=2)
        close(model, tuned)
    stages = {(row["round"], row["stage"]) for row in run.metrics if row["split"] == "test"}
    assert stages == {(r, s) for r in (1, 2, 3) for s in ("before", "own")}
    assert "before" in run.summary


def test_fednova(tmp_path):
    _, models = ours(tmp_path, "fednova", f"training.momentum={RHO}")
    data = population()
    n = {name: len(d["train"][0]) for name, d in data.items()}
    total = sum(n.values())

    def step(states: dict[str, Net], round: int) -> dict[str, Net]:
        start = states["c0"]
        done = {name: slow_client(states[name], data[name], name, round, rho=RHO) for name in data}
        a = {k: (t - RHO * (1 - RHO**t) / (1 - RHO)) / (1 - RHO) for k, (_, t) in done.items()}
        effective = sum(n[k] / total * a[k] for k in done)
        new = {
            key: start[key]
            - effective
            * sum(n[k] / total * (start[key] - state[key]) / a[k] for k, (state, _) in done.items())
            for key in start
        }
        return {name: copy.deepcopy(new) for name in data}

    reference = play(step)
    for name, model in models.items():
        close(model, reference[name])


def test_parts_combine_from_the_settings(tmp_path):
    run, models = ours(
        tmp_path, "fedavg", "sharing=fedper", "objective=proximal", f"objective.mu={MU}", "merge=nova"
    )
    assert {row["block"] for row in run.traffic} == {"base", ""}
    reference = averaged(mu=MU, keys=["0.weight", "0.bias"])
    # Nova weighs by steps, so the base differs from the plain mean; the heads are private in both.
    assert not torch.allclose(models["c0"]["0.weight"], reference["c0"]["0.weight"], rtol=1e-3, atol=1e-4)
    settings = run.settings
    assert settings.sharing["name"] == "fedper"
    assert settings.objective == {"name": "proximal", "mu": MU}
    assert settings.merge["name"] == "nova"


@pytest.mark.parametrize("method", sorted(METHODS))
def test_smoke(method, tmp_path):
    changes = [f"method={method}", "rounds=12", "training.epochs=3", *NEEDS.get(method, ())]
    run = intarsia.run(SMALL, changes=changes, out=tmp_path / "r")
    chance_level = 0.1
    assert run.summary["accuracy"]["mean"] > 3 * chance_level
    assert run.summary["method"] == method


def test_slices_of_one_model_are_merged_entry_by_entry(tmp_path):
    """Two widths of one network at one address: per entry, the mean over those who hold it."""

    def net(width: int) -> nn.Module:
        torch.manual_seed(width)
        return nn.Sequential(nn.Linear(3, width), nn.Linear(width, 3))

    data = population((6, 18))
    data["c0"]["device"], data["c1"]["device"] = "small", "wide"
    settings = {
        "rounds": 1,
        "method": "fedavg",
        "merge": "slices",
        "training": {"lr": LR, "batch_size": 64},
        "engine": {"name": "debug", "device": "cpu"},
    }
    models = {"small": net(2), "wide": net(4)}
    run = intarsia.run(settings, data=data, model=models, out=tmp_path / "r")
    start = net(4).state_dict()
    done = {}
    for name, width in (("c0", 2), ("c1", 4)):
        model = net(width)
        sliced = {k: start[k][tuple(slice(0, n) for n in v.shape)] for k, v in model.state_dict().items()}
        model.load_state_dict(sliced)
        nn.functional.cross_entropy(model(data[name]["train"][0]), data[name]["train"][1]).backward()
        done[name] = {k: (w - LR * w.grad).detach() for k, w in model.named_parameters()}
    wide = {k: v.clone() for k, v in done["c1"].items()}
    for key, small in done["c0"].items():
        corner = tuple(slice(0, n) for n in small.shape)
        wide[key][corner] = (6 * small + 18 * done["c1"][key][corner]) / 24
    close(dict(run.client("c1").model().state_dict()), wide)
    narrow = {k: wide[k][tuple(slice(0, n) for n in v.shape)] for k, v in done["c0"].items()}
    close(dict(run.client("c0").model().state_dict()), narrow)


def test_sampling_is_a_function_of_seed_and_round(tmp_path):
    run = intarsia.run(SMALL, changes=["sampling.fraction=0.5", "rounds=6"], out=tmp_path / "r")
    trained = {
        r: [m["client"] for m in run.metrics if m["round"] == r and m["split"] == "train"]
        for r in range(1, 7)
    }
    assert all(len(names) == 4 for names in trained.values())
    assert len({tuple(names) for names in trained.values()}) > 1
    from intarsia.federation import Sampling

    names = [f"client-{i:02d}" for i in range(8)]
    assert trained == {r: list(Sampling(fraction=0.5).choose(names, 0, r)) for r in range(1, 7)}
    assert Sampling(clients=3).count(8) == 3


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


def held_cohorts(run: intarsia.Run) -> dict[str, str]:
    return dict(run.state().groups["operation"])


def rand_index(run: intarsia.Run) -> float:
    from sklearn.metrics import adjusted_rand_score

    found = held_cohorts(run)
    given = [run.client(name).info.cohort for name in run.clients]
    return float(adjusted_rand_score(given, [found[name] for name in run.clients]))


@pytest.mark.parametrize("algorithm", ["agglomerative", "kmeans"])
def test_found_cohorts_match_the_given_ones(algorithm, tmp_path):
    """Both generations, five cohorts with labels of their own: the last layer's first update tells them apart."""
    changes = [
        "method=modfl",
        "rounds=2",
        "population.labels=2",
        "sharing.cohorts=found",
        f"sharing.algorithm={algorithm}",
    ]
    given = intarsia.run("quickstart", changes=[*changes, "sharing.number=5"], out=tmp_path / "number")
    assert rand_index(given) == 1
    assert len(given.groups) == 40
    assert {row["before"] for row in given.groups} == {"all"}
    bias = [*changes, "sharing.compare=last_bias"]
    chosen = intarsia.run("quickstart", changes=bias, out=tmp_path / "chosen")
    assert rand_index(chosen) == 1


def one_label_each(data: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Clients with even numbers have label 0 alone, the others label 1."""
    for i, entry in enumerate(data.values()):
        x, y = entry["train"]
        entry["train"] = (x, torch.full_like(y, i % 2))
    return data


FIND = {
    "rounds": 2,
    "method": "modfl",
    "sharing": {"cohorts": "found", "number": 2},
    "training": {"lr": LR, "batch_size": 8, "epochs": 2},
    "engine": {"name": "debug", "device": "cpu"},
}


def test_each_found_cohort_goes_on_from_its_members_mean(tmp_path):
    data = one_label_each(population((6, 12, 18, 24)))
    run = intarsia.run({**FIND, "rounds": 1}, data=data, model=network(), out=tmp_path / "r")
    start = dict(network().state_dict())
    done = {n: slow_client(start, data[n], n, 1)[0] for n in data}
    found = held_cohorts(run)
    assert found["c0"] == found["c2"] != found["c1"] == found["c3"]
    for members, weights in ((("c0", "c2"), (6.0, 18.0)), (("c1", "c3"), (12.0, 24.0))):
        outer = mean([done[m] for m in members], list(weights), ["2.weight", "2.bias"])
        inner = mean(list(done.values()), [6.0, 12.0, 18.0, 24.0], ["0.weight", "0.bias"])
        for member in members:
            close(dict(run.client(member).model().state_dict()), {**inner, **outer})
    addresses = {str(a) for a in run.state().pool}
    assert addresses == {"configuration@default", "operation@cohort-0", "operation@cohort-1"}


@pytest.mark.parametrize(
    "changes",
    [
        ["sampling.replacement=true"],
        ["merge=nova", "training.epochs=2"],
        ["merge=relaxed", "merge.beta=0.4"],
        ["sampling.replacement=true", "merge=nova"],
    ],
)
def test_one_found_cohort_is_merged_as_one_given_cohort(changes, tmp_path):
    """Doubles count twice, and the merge is the method's own: bit for bit, in the round in which it is found."""
    data, seed = population((6, 12, 18)), 0
    if "sampling.replacement=true" in changes:  # in round 2 of seed 0 everyone was seen: c1 once and c2 twice
        assert Sampling(replacement=True).choose(list(data), seed, 2) == {"c1": 1, "c2": 2}
    modules = []
    for sharing in ({"cohorts": "found", "number": 1, "after": 2}, {"cohorts": "given"}):
        out = tmp_path / sharing["cohorts"]
        settings = {**FIND, "sharing": sharing, "seed": seed}
        run = intarsia.run(settings, data=data, model=network(), changes=changes, out=out)
        pool = run.state().pool
        (module,) = (pool.get(address) for address in pool if address.block == "operation")
        modules.append(module)
        assert len(run.groups) == (3 if sharing["cohorts"] == "found" else 0)
    assert modules[0].version == modules[1].version


def test_members_of_several_former_cohorts_are_merged_apart_and_then_averaged():
    """By hand, with FedNova: what each changed counts against the module that it had."""
    old, new = Address("operation", "old"), Address("operation", "new")
    group = {"a": old, "b": old, "c": new}
    sent = Pool({old: Block({"w": torch.tensor([0.0])}), new: Block({"w": torch.tensor([10.0])})})
    server = Server(
        round=2,
        rounds=2,
        seed=0,
        clients={},
        residents=[],
        pool=SharedBlocks(sent, sent=Sent(sent, {"a": 1, "b": 3, "c": 4}, Nova())),
        state={},
        addresses=Addresses({client: {"operation": address} for client, address in group.items()}),
        model_of=lambda client: ClientModel(network(), ("operation",), None),
    )
    steps, ends = {"a": 1.0, "b": 2.0, "c": 5.0}, {"a": 2.0, "b": 8.0, "c": 16.0}
    replies = {
        name: Update(
            "r",
            2,
            "train",
            "train",
            name,
            "",
            {group[name]: Block({"w": torch.tensor([ends[name]])})},
            {"step_weight": steps[name]},
        )
        for name in ends
    }
    # a and b: (1/4 * 2/1 + 3/4 * 8/2) * (1/4 * 1 + 3/4 * 2) = 3.5 * 1.75 = 6.125; c: 10 + 6 = 16; the mean, 4 and 4.
    assert server.merged("operation", {name: replies[name] for name in "ab"}).tensors["w"].item() == 6.125
    for order in ("abc", "cba"):
        merged = server.merged("operation", {name: replies[name] for name in order})
        assert merged.tensors["w"].item() == (6.125 + 16) / 2


def test_cohorts_are_found_among_those_who_train_and_newcomers_join_the_largest(tmp_path):
    data = one_label_each(population((6, 12, 18, 24, 30, 9)))
    run = intarsia.run({**FIND, "sampling": {"newcomers": 1}}, data=data, model=network(), out=tmp_path / "r")
    found = held_cohorts(run)
    assert found["c0"] == found["c2"] == found["c4"] == found["c5"]
    assert found["c1"] == found["c3"] != found["c0"]
    addresses = {str(a) for a in run.state().pool}
    assert addresses == {"configuration@default", "operation@cohort-0", "operation@cohort-1"}
    close(*(dict(run.client(name).model().state_dict()) for name in ("c5", "c0")))
    assert {row["stage"] for row in run.metrics if row["client"] == "c5"} == {"new", "tuned"}


def test_a_newcomer_with_a_task_that_nobody_trains_keeps_the_first_module(tmp_path):
    data = one_label_each(population((6, 12, 18, 24, 30)))
    for name, entry in data.items():
        entry["task"] = "other" if name == "c4" else "usual"
    run = intarsia.run({**FIND, "sampling": {"newcomers": 1}}, data=data, model=network(), out=tmp_path / "r")
    assert held_cohorts(run).keys() == {"c0", "c1", "c2", "c3"}
    assert torch.equal(run.client("c4").model().state_dict()["2.weight"], network().state_dict()["2.weight"])


def test_finding_waits_until_every_client_took_part_and_survives_resume(tmp_path):
    changes = [
        "method=modfl",
        "rounds=8",
        "population.labels=2",
        "sharing.cohorts=found",
        "sharing.number=5",
        "sampling.fraction=0.4",
        "engine.name=debug",
    ]
    whole = intarsia.run("quickstart", changes=changes, out=tmp_path / "whole")
    moved = {row["round"] for row in whole.groups}
    seen = {}
    for row in whole.metrics:
        if row["split"] == "train":
            seen.setdefault(row["client"], row["round"])
    assert moved == {max(seen.values())}
    assert rand_index(whole) >= 0.9

    class Stop(intarsia.Observer):
        def exchange_started(self, round: int, name: str, clients: int) -> None:
            if round == min(moved):
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        intarsia.run("quickstart", changes=changes, out=tmp_path / "cut", observer=Stop())
    resumed = intarsia.resume(tmp_path / "cut", engine={"name": "local", "workers": 2})
    assert resumed.metrics == whole.metrics
    assert resumed.groups == whole.groups


def test_found_cohorts_are_found_again_until_nothing_changes(tmp_path):
    changes = [
        "method=modfl",
        "rounds=6",
        "population.labels=2",
        "sharing.cohorts=found",
        "sharing.number=5",
        "sharing.every=1",
        "engine.name=debug",
    ]
    run = intarsia.run("quickstart", changes=changes, out=tmp_path / "r")
    state = run.state()
    assert state.server["cohorts settled"]
    assert rand_index(run) >= 0.9


def test_a_found_cohorts_module_owes_nothing_of_the_one_it_replaces(tmp_path):
    changes = [
        "method=modfl",
        "rounds=5",
        "population.labels=2",
        "sharing.cohorts=found",
        "sharing.number=5",
        "sharing.after=2",
        "sharing.every=1",
        "codec.name=topk",
        "codec.down=true",
        "checkpoints.keep=9",
        "engine.name=debug",
    ]
    run = intarsia.run("quickstart", changes=changes, out=tmp_path / "r")
    coded = []
    for number in range(1, 6):
        state = run.state(number)
        assert all(code.version == state.pool.version(address) for address, code in state.codes.items())
        coded.append(any(address.block == "operation" for address in state.codes))
    assert coded == [True, False, False, True, True]  # found in round 2, found again and settled in round 3
    assert state.server["cohorts settled"]


def test_groups_keep_the_name_they_overlap_most():
    from intarsia.methods.modfl.cohorts import keep_names

    before = {"a": "x", "b": "x", "c": "x", "d": "y"}
    clusters = {"a": 0, "b": 1, "c": 1, "d": 2, "e": 0}
    assert keep_names(before, clusters, ["new-0", "x", "new-1"]) == {
        "a": "new-0",
        "b": "x",
        "c": "x",
        "d": "y",
        "e": "new-0",
    }


def test_a_sharing_that_finds_cohorts_combines_with_any_method(tmp_path):
    changes = ["method=fednova", "sharing=modfl", "sharing.cohorts=found", "sharing.number=2", "rounds=3"]
    run = intarsia.run(SMALL, changes=changes, out=tmp_path / "r")
    assert run.summary["finished"]
    assert len(set(held_cohorts(run).values())) == 2


def test_random_cohorts_are_a_control(tmp_path):
    changes = ["method=modfl", "sharing.cohorts=random", "sharing.number=5", "rounds=1"]
    run = intarsia.run("quickstart", changes=changes, out=tmp_path / "r")
    groups = {r["client"]: r["group"] for r in run.traffic if r["block"] == "operation"}
    from sklearn.metrics import adjusted_rand_score

    given = [run.client(name).info.cohort for name in run.clients]
    assert len(set(groups.values())) == 5
    assert abs(adjusted_rand_score(given, [groups[name] for name in run.clients])) < 0.2


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


def test_starting_from_an_earlier_run_takes_its_blocks_exactly(tmp_path):
    first = intarsia.run(SMALL, changes=["rounds=2"], out=tmp_path / "first")
    frozen = ["rounds=1", "training.lr=1e-30", f"start_from={first.path}"]
    second = intarsia.run(SMALL, changes=frozen, out=tmp_path / "second")
    for name in first.clients:
        one, other = first.client(name).model().state_dict(), second.client(name).model().state_dict()
        assert all(torch.equal(one[key], other[key]) for key in one)


@pytest.mark.parametrize("method", ["pfedme", "pfedbayes"])
def test_personal_models_go_on_in_a_later_run_of_the_same_method(method, tmp_path):
    changes = [f"method={method}", "sharing={}", "population.generations=['8x8']", "rounds=2"]
    first = intarsia.run(SMALL, changes=changes, out=tmp_path / "first")
    later = [*changes, "rounds=1", "sampling.clients=1", "training.lr=1e-30", f"start_from={first.path}"]
    if method == "pfedme":
        later.append("method.personal_lr=1e-30")
    second = intarsia.run(SMALL, changes=later, out=tmp_path / "second")
    trained = {row["client"] for row in second.metrics if row["split"] == "train"}
    idle = [name for name in first.clients if name not in trained]
    for name in idle:
        one, other = first.client(name).model().state_dict(), second.client(name).model().state_dict()
        assert all(torch.equal(one[key], other[key]) for key in one)


def test_a_client_drawn_twice_counts_twice(tmp_path):
    """Sampling with replacement: the merge is the mean weighted by samples and by how often each was drawn."""
    from intarsia.federation import Sampling

    sampling = Sampling(clients=4, replacement=True)
    names = ["a", "b", "c", "d"]
    drawn = {r: sampling.choose(names, 0, r) for r in range(1, 30)}
    assert all(sum(counts.values()) == 4 for counts in drawn.values())
    assert any(max(counts.values()) > 1 for counts in drawn.values())
    changes = ["rounds=1", 'population.generations=["8x8"]', "sharing={}", "sampling.clients=8"]
    run = intarsia.run(SMALL, changes=[*changes, "sampling.replacement=true"], out=tmp_path / "r")
    alone = intarsia.run(SMALL, changes=[*changes, "method=local"], out=tmp_path / "alone")
    counts = Sampling(clients=8, replacement=True).choose(run.clients, 0, 1)
    assert max(counts.values()) > 1
    weights = {name: n * run.client(name).info.train_samples for name, n in counts.items()}
    trained = {name: alone.client(name).model().state_dict() for name in counts}
    merged = run.client(run.clients[0]).model().state_dict()
    for tensor in merged:
        mean = sum(w * trained[n][tensor].double() for n, w in weights.items()) / sum(weights.values())
        assert torch.allclose(merged[tensor].double(), mean, atol=1e-6)


def test_only_whole_methods_are_listed():
    assert {"beside", "reassembly"}.isdisjoint(METHODS)


@pytest.mark.parametrize("algorithm", ["agglomerative", "kmeans"])
@pytest.mark.parametrize("number", [0, 2])
def test_updates_of_nothing_do_not_stop_the_search_for_cohorts(algorithm, number):
    rows = np.array([[1.0, 0.0], [1.0, 0.1], [-1.0, 0.0], [-1.0, 0.1], [0.0, 0.0], [0.0, 0.0]])
    found = cluster(rows, number, algorithm, 0)
    assert found[0] == found[1] != found[2] == found[3]
    assert found[4] == found[5]


@pytest.mark.parametrize("method", ["fedmd", "fccl", "fedkemf"])
def test_missing_public_data_is_said_before_anything_is_written(method, tmp_path):
    with pytest.raises(SettingsError, match="needs public data"):
        intarsia.run(
            SMALL,
            changes=[f"method={method}", "sharing={}", "population.generations=['8x8']"],
            out=tmp_path / "r",
        )
    assert not (tmp_path / "r").exists()
