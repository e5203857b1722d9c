"""HeteroFL against a slow implementation, and its parts by hand."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch import nn

import intarsia
from intarsia.data import ClientInfo
from intarsia.methods.heterofl import HeteroFL
from intarsia.models import add_mask, set_mask
from tests.conftest import SMALL
from tests.methods import slow


def wide() -> nn.Module:
    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 3))


def clients():
    """Two clients: one of half the capacity, and one that lacks a label."""
    data = slow.population((6, 14))
    data["c0"]["capacity"] = 0.5
    x, y = data["c1"]["train"]
    data["c1"]["train"] = (x, torch.where(y == 2, 1, y))
    return data


def leading(state, units):
    """The slice by hand: so many hidden units."""
    return {
        "0.weight": state["0.weight"][:units],
        "0.bias": state["0.bias"][:units],
        "1.weight": state["1.weight"][:units],
        "1.bias": state["1.bias"][:units],
        "3.weight": state["3.weight"][:, :units],
        "3.bias": state["3.bias"],
    }


def forward(w, x, ratio, statistics=None):
    """The slice in functional form; without statistics it normalises by the batch."""
    hidden = (x @ w["0.weight"].T + w["0.bias"]) / ratio
    mean, var = statistics or (hidden.mean(0), hidden.var(0, unbiased=False))
    normal = (hidden - mean) / torch.sqrt(var + 1e-5) * w["1.weight"] + w["1.bias"]
    return normal.relu() @ w["3.weight"].T + w["3.bias"]


def local(w, entry, name, round, *, ratio=1.0, mask=True, scaler=True):
    x, y = entry["train"][0].double(), entry["train"][1]
    held = torch.tensor([float(c in y.tolist() or not mask) for c in range(3)]).double()
    w = {k: t.clone().requires_grad_(True) for k, t in w.items()}
    for rows in slow.batches(len(y), name, round):
        if len(rows) == 1:
            continue
        logits = forward(w, x[rows], ratio if scaler else 1.0) * held
        loss = -logits.log_softmax(1)[torch.arange(len(rows)), y[rows]].mean()
        gradients = torch.autograd.grad(loss, list(w.values()))
        w = {
            k: (t - slow.LR * g).detach().requires_grad_(True)
            for (k, t), g in zip(w.items(), gradients, strict=True)
        }
    return {k: t.detach() for k, t in w.items()}


def play(data, rounds, rows=True, **how):
    """Play rounds; `rows`: the last layer's rows of labels that a client lacks do not count."""
    w = {k: t.double() for k, t in leading(wide().state_dict(), 4).items()}
    for round in range(1, rounds + 1):
        small = local(leading(w, 2), data["c0"], "c0", round, ratio=0.5, **how)
        whole = local(w, data["c1"], "c1", round, **how)
        for k in w:
            w[k] = entry_means(w[k], k, [(6, small, data["c0"]), (14, whole, data["c1"])], rows)
    return w


def entry_means(now, name, holders, rows):
    """The mean of every entry over those who hold it, entry by entry."""
    new = now.clone()
    for at in np.ndindex(*now.shape):
        counted = [
            (n, w[name][at])
            for n, w, entry in holders
            if all(i < size for i, size in zip(at, w[name].shape, strict=True))
            and not (rows and name.startswith("3.") and at[0] not in entry["train"][1].tolist())
        ]
        if counted:
            new[at] = sum(n * value for n, value in counted) / sum(n for n, _ in counted)
    return new


def run(out, data, *changes, rounds=2, **given):
    return slow.run(out, "heterofl", data, *changes, rounds=rounds, **{"model": wide(), **given})


@pytest.mark.parametrize(
    ("changes", "how"),
    [
        ([], {}),
        (["method.held_rows=false"], {"rows": False}),
        (["method.masked=false"], {"mask": False, "rows": False}),
        (["method.scaler=false"], {"scaler": False}),
    ],
)
def test_against_a_slow_implementation(changes, how, tmp_path):
    data = clients()
    made = run(tmp_path / "r", data, *changes)
    expected = play(data, 2, **how)
    slow.close(slow.shared(made), slow.as_net(expected))
    for name, units in (("c0", 2), ("c1", 4)):
        model = made.client(name).model().eval()
        mine = leading(expected, units)
        x, _ = data[name]["train"]
        ratio = units / 4 if how.get("scaler", True) else 1.0
        hidden = (x.double() @ mine["0.weight"].T + mine["0.bias"]) / ratio
        statistics = (hidden.mean(0), hidden.var(0))
        test = data[name]["test"][0]
        held = [
            float(label in data[name]["train"][1].tolist() or not how.get("mask", True)) for label in range(3)
        ]
        outputs = forward(mine, test.double(), ratio, statistics) * torch.tensor(held)
        np.testing.assert_allclose(model(test).detach().numpy(), outputs.numpy(), rtol=1e-3, atol=1e-4)


def deep() -> nn.Module:
    """No norms, and sizes of which a quarter is no whole number."""
    torch.manual_seed(6)
    return nn.Sequential(nn.Linear(3, 10), nn.ReLU(), nn.Linear(10, 6), nn.ReLU(), nn.Linear(6, 3))


def test_a_network_without_norms_predicts_as_it_was_trained(tmp_path):
    """By hand: 3 of 10 and 2 of 6 units are held, so the layers give 10/3 and 3 times as much."""
    data = clients()
    data["c0"]["capacity"] = 0.25
    made = run(tmp_path / "r", data, "method.masked=false", model=deep())
    w = {name: torch.from_numpy(tensor) for name, tensor in slow.shared(made).items()}
    x = data["c0"]["test"][0].double()
    first = ((x @ w["0.weight"][:3].T + w["0.bias"][:3]) * 10 / 3).relu()
    second = ((first @ w["2.weight"][:2, :3].T + w["2.bias"][:2]) * 3).relu()
    expected = second @ w["4.weight"][:, :2].T + w["4.bias"]
    model = made.client("c0").model().eval()
    np.testing.assert_allclose(model(x.float()).detach().numpy(), expected.numpy(), rtol=1e-4, atol=1e-5)
    rows = [r for r in made.metrics if r["client"] == "c0" and r["split"] == "test" and r["round"] == 2]
    assert [r["correct"] for r in rows] == [int((expected.argmax(1) == data["c0"]["test"][1]).sum())]


def test_a_row_that_nobody_holds_keeps_its_value(tmp_path):
    data = clients()
    for entry in data.values():
        x, y = entry["train"]
        entry["train"] = (x, y.clamp(max=1))
    w = slow.shared(run(tmp_path / "r", data, "training.weight_decay=0.1"))
    start = slow.as_net(wide().state_dict())
    assert np.array_equal(w["3.weight"][2], start["3.weight"][2])
    assert w["3.bias"][2] == start["3.bias"][2]
    assert not np.allclose(w["3.weight"][:2], start["3.weight"][:2])


def test_statistics_stay_at_home_and_entries_nobody_holds_keep_their_value(tmp_path):
    data = clients()
    data["c1"]["capacity"] = 0.5
    data["c2"] = {**slow.population((6, 14))["c1"], "capacity": 1.0}
    made = run(tmp_path / "r", data, "sampling.newcomers=1")
    start, w = wide().state_dict(), slow.shared(made)
    assert w.keys() == leading(start, 4).keys()
    assert np.array_equal(w["0.weight"][2:], start["0.weight"][2:].double().numpy())
    assert not np.allclose(w["0.weight"][:2], start["0.weight"][:2].double().numpy())
    assert {row["block"] for row in made.traffic} == {"", "model"}


def test_the_mask_by_hand():
    model = nn.Identity()
    add_mask(model)
    x = torch.tensor([[1.0, 5.0, 2.0]], requires_grad=True)
    assert model(x).tolist() == [[1, 5, 2]]
    set_mask(model, torch.tensor([0, 2, 2]))
    assert copy.deepcopy(model)(x).tolist() == [[1, 0, 2]]
    value = nn.functional.cross_entropy(model(x), torch.tensor([2]))
    assert value.item() == pytest.approx(-2 + np.log(np.e + 1 + np.e**2))
    value.backward()
    assert x.grad[0, 1] == 0
    assert x.grad[0, 0] > 0
    set_mask(model, None)
    assert model(x).tolist() == [[1, 5, 2]]


def test_widths_follow_capacity_or_lot():
    def info(name, capacity):
        return ClientInfo(name, (3,), {"train": 1}, capacity=capacity)

    method = HeteroFL()
    capacities = (2.0, 1.0, 0.6, 0.25, 0.01)
    assert [method.width(info("a", c)) for c in capacities] == [1.0, 1.0, 0.5, 0.25, 0.0625]
    drawn = [HeteroFL(by="lot", widths=(1.0, 0.5)).width(info(f"c{i}", 1.0)) for i in range(100)]
    assert 30 < drawn.count(1.0) < 70
    again = [HeteroFL(by="lot", widths=(1.0, 0.5), lot=1).width(info(f"c{i}", 1.0)) for i in range(100)]
    assert drawn != again


def test_models_by_name_are_slices_too(tmp_path):
    """The share of a layer is told by the shapes: the same as with widths made by capacity."""
    data = clients()
    del data["c0"]["capacity"]
    data["c0"]["model"], data["c1"]["model"] = "small", "wide"
    small = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2), nn.ReLU(), nn.Linear(2, 3))
    made = run(tmp_path / "r", data, model={"small": small, "wide": wide()})
    slow.close(slow.shared(made), slow.as_net(play(data, 2)))


def test_a_stopped_run_goes_on_to_the_same_bits(tmp_path):
    data = clients()
    whole = run(tmp_path / "whole", data, rounds=4)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "cut", data, rounds=4, observer=slow.Stop(3))
    resumed = intarsia.resume(tmp_path / "cut", data=data, model=wide())
    assert resumed.metrics == whole.metrics
    for name in data:
        one, two = slow.own(whole, name), slow.own(resumed, name)
        assert all(np.array_equal(one[key], two[key]) for key in one)


def test_narrow_clients_send_less_and_learn(tmp_path):
    changes = [
        "method=heterofl",
        "method.by=lot",
        "rounds=15",
        "training.epochs=3",
        "method.widths=[1.0, 0.5, 0.25]",
    ]
    made = intarsia.run(SMALL, changes=changes, out=tmp_path / "r")
    assert made.summary["accuracy"]["mean"] > 0.6
    sizes = {row["bytes"] for row in made.traffic if row["direction"] == "up" and row["round"] == 1}
    assert len(sizes) > 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("method.widths=[]", "method.widths: .*at least 1"),
        ("method.widths=[2.0]", "method.widths.0: input should be less than or equal to 1"),
        ("method.by=device", "method.by: input should be 'capacity' or 'lot'"),
        ("method.scalar=true", "method.scalar: unknown setting; did you mean 'scaler'"),
        ("merge=mean", "share model@all, but their blocks differ"),
    ],
)
def test_bad_settings(change, message, tmp_path):
    with pytest.raises(intarsia.IntarsiaError, match=message):
        run(tmp_path / "r", clients(), change)


def test_a_model_that_has_no_slices_says_so(tmp_path):
    with pytest.raises(intarsia.IntarsiaError, match="no hidden layer"):
        run(tmp_path / "r", clients(), model=slow.linear())


CONVOLUTIONS = [
    "method=heterofl",
    "method.by=lot",
    "method.widths=[1.0, 0.5]",
    'population.generations=["8x8"]',
    "population.clients=4",
    "model={name='club_cnn', number=4, width=0.1}",
    "training.batch_size=64",
    "rounds=2",
]


def test_engines_agree_with_norms_and_dropout(small_run):
    debug = small_run(*CONVOLUTIONS, out="debug")
    workers = small_run(*CONVOLUTIONS, "engine.name=local", "engine.workers=2", out="local")
    assert debug.metrics == workers.metrics
    assert debug.traffic == workers.traffic
    for name in debug.clients:
        one, two = slow.own(debug, name), slow.own(workers, name)
        assert all(np.array_equal(one[key], two[key]) for key in one)
        assert one["norm1.running_mean"].any()


@pytest.mark.parametrize(
    "changes",
    [
        ["sharing=fedper", "sharing.by=device"],
        ["codec=int8"],
        ["sharing.norms=home"],
        ["sampling.newcomers=1"],
        ["objective=proximal"],
    ],
)
def test_it_combines(changes, small_run):
    run = small_run(*CONVOLUTIONS, *changes)
    assert run.summary["finished"]
    assert run.summary["failed"] == run.summary["refused"] == 0
