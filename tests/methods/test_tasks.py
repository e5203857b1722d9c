"""Clients of one federation with different tasks; clients that move; cohorts of one."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import intarsia
from intarsia.core import AddressError

TASKS = {
    "name": "tasks",
    "rounds": 2,
    "method": "modfl",
    "population": {"name": "digits", "clients": 16, "cohorts": 2, "tasks": ["digit", "slant"]},
    "model": {"name": "mlp", "hidden": [8]},
    "training": {"lr": 0.1, "batch_size": 16},
    "engine": {"name": "debug", "device": "cpu"},
}


def test_operation_modules_differ_by_task_and_the_input_side_is_shared(tmp_path):
    run = intarsia.run(TASKS, out=tmp_path / "r")
    plan = intarsia.preview(TASKS)
    assert set(plan["addresses"]) == {
        "configuration@8x8",
        "configuration@4x4",
        *(f"operation@{task}/cohort-{i}" for task in ("digit", "slant") for i in range(2)),
    }
    outputs = {run.client(n).info.task: list(run.client(n).model().parameters())[-1] for n in run.clients}
    assert {task: len(bias) for task, bias in outputs.items()} == {"digit": 10, "slant": 1}
    first = {(run.client(n).info.device, run.client(n).info.task): n for n in run.clients}
    one, other = (run.client(first["8x8", task]).model() for task in ("digit", "slant"))
    assert torch.equal(next(one.parameters()), next(other.parameters()))


def test_losses_and_metrics_are_those_of_the_task(tmp_path):
    """The loss of a client of each task, worked out from its own model and data."""
    run = intarsia.run(TASKS, out=tmp_path / "r")
    rows = {m["client"]: m for m in run.metrics if m["round"] == 2 and m["split"] == "test"}
    losses = {"digit": [], "slant": []}
    for name in run.clients:
        client = run.client(name)
        examples = run.experiment.setup.population.clients[name].data["test"]
        with torch.no_grad():
            outputs = client.model()(examples.x)
        if client.info.task == "digit":
            loss = nn.functional.cross_entropy(outputs, examples.y)
            assert rows[name]["correct"] == int((outputs.argmax(1) == examples.y).sum())
        else:
            loss = ((outputs - examples.y) ** 2).mean()
            assert rows[name]["accuracy"] is None
        assert rows[name]["loss"] == pytest.approx(float(loss), rel=1e-5)
        losses[client.info.task].append(rows[name]["loss"])
    tasks = run.summary["tasks"]
    assert tasks["slant"]["accuracy"] == {}
    assert run.summary["accuracy"] == tasks["digit"]["accuracy"]
    for task, own in losses.items():
        assert tasks[task]["clients"] == 8
        assert tasks[task]["loss"]["mean"] == pytest.approx(np.mean(own))


def test_tasks_on_workers_and_resumed_are_the_same(tmp_path):
    one = intarsia.run(TASKS, out=tmp_path / "one")
    two = intarsia.run(TASKS, changes=["engine.name=local", "engine.workers=2"], out=tmp_path / "two")
    assert one.metrics == two.metrics


def test_the_configuration_module_learns_from_both_tasks(tmp_path):
    """The mean over all clients of a device, by an independent sum."""
    run = intarsia.run(TASKS, changes=["rounds=1"], out=tmp_path / "r")
    cut = 'cut={configuration="hidden1.*",operation="head.*"}'
    alone = intarsia.run(TASKS, changes=["rounds=1", "method=local", cut], out=tmp_path / "alone")
    members = [n for n in run.clients if run.client(n).info.device == "8x8"]
    assert {run.client(n).info.task for n in members} == {"digit", "slant"}
    weights = [run.client(n).info.train_samples for n in members]
    trained = [next(alone.client(n).model().parameters()).detach().double() for n in members]
    mean = sum(w * t for w, t in zip(weights, trained, strict=True)) / sum(weights)
    shared = next(run.client(members[0]).model().parameters()).detach().double()
    assert torch.allclose(shared, mean, atol=1e-6)


def test_cohorts_are_found_within_tasks(tmp_path):
    changes = ["sharing.cohorts=found", "sharing.number=2", 'population.tasks=["digit","loops"]']
    run = intarsia.run(TASKS, changes=changes, out=tmp_path / "r")
    groups = {m["client"]: m["group"] for m in run.groups}
    assert groups.keys() == set(run.clients)
    for name, group in groups.items():
        assert group.startswith(f"{run.client(name).info.task}/cohort-")
    assert len(set(groups.values())) == 4


def rows(n, seed, outputs):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 3, generator=generator)
    return (x, (x[:, 0] > 0).long() if outputs else x[:, :1] * 2)


def entry(seed, classify=True, **attributes):
    return {"train": rows(20, seed, classify), "test": rows(10, seed + 50, classify), **attributes}


def test_own_data_with_a_task_of_each_kind(tmp_path):
    data = {
        "a": entry(0, task="fall"),
        "b": entry(1, task="fall"),
        "c": entry(2, False, task="speed", problem="regression"),
    }
    settings = {"rounds": 2, "method": "fedper", "model": {"name": "mlp", "hidden": [4]}}
    run = intarsia.run(settings, data=data, out=tmp_path / "r")
    assert set(run.summary["tasks"]) == {"fall", "speed"}
    assert run.population["labels"] == ["fall: 0", "fall: 1", "speed: samples"]
    assert run.population["clients"]["c"]["labels"]["train"] == [0, 0, 20]
    with pytest.raises(intarsia.IntarsiaError, match="'a' and 'c' have different problems"):
        intarsia.run(settings, data={**data, "c": {**data["c"], "task": "fall"}}, out=tmp_path / "no")
    with pytest.raises(intarsia.IntarsiaError, match="client 'c' has problem 'sums'"):
        intarsia.run(settings, data={**data, "c": {**data["c"], "problem": "sums"}}, out=tmp_path / "no")


def test_one_model_for_all_cannot_serve_two_tasks_and_the_error_says_so(tmp_path):
    with pytest.raises(intarsia.IntarsiaError, match="share model@all, but their blocks differ"):
        intarsia.run(TASKS, changes=["method=fedavg", 'population.generations=["8x8"]'], out=tmp_path / "r")


def test_members_of_a_joint_population_may_have_different_tasks(tmp_path):
    small = {"name": "digits", "clients": 4, "cohorts": 1, "generations": ["8x8"]}
    members = {"one": {**small, "tasks": ["digit"]}, "two": {**small, "tasks": ["loops"]}}
    with pytest.raises(intarsia.IntarsiaError, match="is a client of two members"):
        intarsia.run({**TASKS, "population": {"name": "joint", "members": members}}, out=tmp_path / "no")


MOVES = {
    "rounds": 1,
    "method": "modfl",
    "model": {"name": "mlp", "hidden": [4, 4]},
    "training": {"lr": 1e-30},
}


def test_a_cohort_of_one_keeps_its_own_module(tmp_path):
    data = {
        "a": entry(0, cohort="many"),
        "b": entry(1, cohort="many"),
        "c": entry(2, cohort="lonely"),
    }
    settings = {**MOVES, "training": {"lr": 0.1}}
    run = intarsia.run(settings, data=data, out=tmp_path / "r")
    alone = intarsia.run({**settings, "method": "local"}, data=data, out=tmp_path / "alone")
    mine, by_itself = (r.client("c").model().state_dict() for r in (run, alone))
    head = [name for name in mine if name.startswith("head")]
    assert head
    assert all(torch.allclose(mine[n], by_itself[n], atol=1e-6) for n in head)
    assert not torch.allclose(mine["hidden1.weight"], by_itself["hidden1.weight"], atol=1e-6)


def test_a_client_that_changes_cohort_or_device_finds_that_module(tmp_path):
    """After training, "a" moves to the cohort of "c", then to the device of "c": both modules are c's."""

    def population(cohort="north", device="gen1"):
        return {
            "a": entry(0, cohort=cohort, device=device),
            "b": entry(1, cohort="north", device="gen1"),
            "c": entry(2, cohort="south", device="gen2"),
        }

    settings = {**MOVES, "training": {"lr": 0.5}}
    first = intarsia.run(settings, data=population(), out=tmp_path / "first")
    still = {**MOVES, "start_from": str(first.path)}
    for change, part in (({"cohort": "south"}, "head"), ({"device": "gen2"}, "hidden1")):
        moved = intarsia.run(still, data=population(**change), out=tmp_path / part)
        a, c = (moved.client(name).model().state_dict() for name in ("a", "c"))
        was = first.client("c").model().state_dict()
        same = [name for name in a if name.startswith(part)]
        assert same
        assert all(torch.equal(a[n], was[n]) and torch.equal(c[n], was[n]) for n in same)
        assert moved.client("b").model().state_dict().keys() == a.keys()


def test_what_a_client_keeps_to_itself_goes_on_with_it(tmp_path):
    data = {name: entry(i) for i, name in enumerate("ab")}
    settings = {
        "rounds": 1,
        "method": "fedper",
        "model": {"name": "mlp", "hidden": [4]},
        "training": {"lr": 0.5},
    }
    first = intarsia.run(settings, data=data, out=tmp_path / "first")
    still = {**settings, "training": {"lr": 1e-30}, "start_from": str(first.path)}
    second = intarsia.run(still, data={**data, "late": entry(7)}, out=tmp_path / "second")
    for name in "ab":
        was, now = (r.client(name).model().state_dict() for r in (first, second))
        assert all(torch.equal(was[n], now[n]) for n in was)
    assert not torch.equal(
        second.client("late").model().state_dict()["head.weight"],
        second.client("a").model().state_dict()["head.weight"],
    )


def test_files_of_two_tasks_in_one_federation(tmp_path):
    """Two tables: one with labels, one with numbers to estimate."""
    generator = np.random.default_rng(0)
    for name, target in (("falls", "fell"), ("speeds", "speed")):
        lines = [f"client,a,b,{target}"]
        for i in range(60):
            a, b = generator.normal(size=2)
            value = ("yes" if a > 0 else "no") if target == "fell" else f"{2 * a - b:.3f}"
            lines.append(f"{name}-{i % 3},{a:.3f},{b:.3f},{value}")
        (tmp_path / f"{name}.csv").write_text("\n".join(lines))
    members = {
        "falls": {"name": "files", "path": str(tmp_path / "falls.csv"), "target": "fell", "task": "fall"},
        "speeds": {
            "name": "files",
            "path": str(tmp_path / "speeds.csv"),
            "target": "speed",
            "problem": "regression",
            "task": "speed",
        },
    }
    settings = {
        "rounds": 2,
        "method": "modfl",
        "population": {"name": "joint", "members": members},
        "model": {"name": "mlp", "hidden": [4]},
    }
    run = intarsia.run(settings, out=tmp_path / "r")
    assert set(run.summary["tasks"]) == {"fall", "speed"}
    assert {a for a in intarsia.preview(settings)["addresses"] if a.startswith("operation")} == {
        "operation@fall/default",
        "operation@speed/default",
    }


@pytest.mark.parametrize("method", ["fedavg", "heterofl"])
def test_outputs_of_different_tasks_are_not_merged(method, tmp_path):
    with pytest.raises(AddressError, match=r"task 'digit'.*task 'slant'.*sharing.by = \"task\""):
        intarsia.run(
            TASKS, changes=[f"method={method}", "population.generations=['8x8']"], out=tmp_path / "r"
        )
    assert not (tmp_path / "r").exists()
