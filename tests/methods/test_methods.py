"""Every method against an independent slow implementation in plain torch, and by a smoke run."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import intarsia
from intarsia.blocks import Address, Block, Pool, Update
from intarsia.core import SettingsError, chance
from intarsia.federation import Sampling
from intarsia.methods import METHODS, Addresses, ClientModel, Sent, Server, SharedBlocks
from intarsia.methods.fednova import Nova
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
    rounds, epochs = (12, 3) if method == "fedmn" else (5, 2)  # FedMN's links begin as coins that are tossed
    once = [f"{setting}={rounds}" for setting in ("rounds", "evaluation.every", "checkpoints.every")]
    changes = [f"method={method}", f"training.epochs={epochs}", *once, *NEEDS.get(method, ())]
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

    names = [f"client-{i:02d}" for i in range(8)]
    assert trained == {r: list(Sampling(fraction=0.5).choose(names, 0, r)) for r in range(1, 7)}
    assert Sampling(clients=3).count(8) == 3


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


def test_what_a_server_kept_beside_its_models_begins_afresh_and_is_named(tmp_path):
    changes = ["method=pfedclub", *NEEDS["pfedclub"], "rounds=1"]
    first = intarsia.run(SMALL, changes=changes, out=tmp_path / "first")
    assert any(address.block == "teacher" for address in first.state().pool)
    with pytest.warns(
        intarsia.IntarsiaWarning, match=r"begins afresh: blocks teacher@.*; values teachers, sizes"
    ):
        later = intarsia.run(SMALL, changes=[*changes, f"start_from={first.path}"], out=tmp_path / "later")
    assert not any(row["kind"] == "lesson" for row in later.notes)  # nobody had a teacher in its first round


def test_a_client_drawn_twice_counts_twice(tmp_path):
    """Sampling with replacement: the merge is the mean weighted by samples and by how often each was drawn."""

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


@pytest.mark.parametrize("method", ["fedmd", "fccl", "fedkemf"])
def test_missing_public_data_is_said_before_anything_is_written(method, tmp_path):
    with pytest.raises(SettingsError, match="needs public data"):
        intarsia.run(
            SMALL,
            changes=[f"method={method}", "sharing={}", "population.generations=['8x8']"],
            out=tmp_path / "r",
        )
    assert not (tmp_path / "r").exists()
