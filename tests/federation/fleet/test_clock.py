"""A fleet's clock by hand: three clients whose seconds are whole numbers."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

import intarsia
from intarsia.core import DataError, IntarsiaError, SettingsError
from tests.methods.test_methods import LR, network, population

ROUNDS = {"rounds": 3, "training": {"lr": LR, "batch_size": 8, "epochs": 2}}
DEVICES = {"speed": 120, "down": 124, "up": 62}
"""A sample costs 24 multiplications forward, 24 for weights and 12 for the hidden layer on the way back, in two epochs:
120, a second. The model has 124 bytes: a second down, two up. So clients of 5, 12 and 30 samples take 8, 15 and 33."""


def play(tmp_path: Any, *changes: str, out: str = "r", data: Any = None, **fleet: Any) -> intarsia.Run:
    settings = {**ROUNDS, "method": "fedavg", "fleet": {**DEVICES, **fleet}}
    settings["engine"] = {"name": "debug", "device": "cpu"}
    given = population() if data is None else data
    return intarsia.run(settings, data=given, model=network(), changes=changes, out=tmp_path / out)


def trips(run: intarsia.Run, round: int) -> dict[str, tuple[float, str]]:
    return {
        row["client"]: (row["answered"], row["outcome"])
        for row in run.clock
        if row["round"] == round and row["client"]
    }


def ends(run: intarsia.Run) -> list[float]:
    return [row["answered"] for row in run.clock if not row["client"]]


def test_a_round_takes_as_long_as_its_slowest_client(tmp_path):
    run = play(tmp_path)
    assert trips(run, 1) == {"c0": (8, "counted"), "c1": (15, "counted"), "c2": (33, "counted")}
    assert ends(run) == [33, 66, 99]
    assert run.summary["virtual_seconds"] == 99
    row = run.clock[1]
    assert [row[key] for key in ("down", "compute", "up", "latency")] == [1, 12, 2, 0]
    assert len(run.clock) == 12


def test_without_a_fleet_there_is_no_clock_and_nothing_changes(tmp_path, small_run):
    plain = small_run("rounds=2")
    assert plain.clock == []
    assert "virtual_seconds" not in plain.summary
    timed = small_run("rounds=2", "fleet.speed=1e6", out="timed")
    for table in ("metrics", "traffic", "events", "judged"):
        name = f"{table}.jsonl"
        assert (plain.path / name).read_bytes() == (timed.path / name).read_bytes()


def test_who_is_late_does_not_count_and_the_round_is_as_if_it_was_not_there(tmp_path):
    run = play(tmp_path, deadline=20)
    assert trips(run, 2) == {"c0": (28, "counted"), "c1": (35, "counted"), "c2": (53, "late")}
    assert ends(run) == [20, 40, 60]
    data = population()
    del data["c2"]
    without = play(tmp_path, out="without", data=data)
    one, other = (run.client("c0").model().state_dict() for run in (run, without))
    assert all(torch.equal(tensor, other[name]) for name, tensor in one.items())
    late = [
        row for row in run.traffic if row["client"] == "c2" and row["purpose"] == "train" and row["block"]
    ]
    assert [row["direction"] for row in late] == ["down"] * 3


def test_a_round_that_nobody_answers_in_time_changes_nothing_and_passes(tmp_path):
    run = play(tmp_path, deadline=5)
    assert ends(run) == [5, 10, 15]
    start = network().state_dict()
    assert all(torch.equal(tensor, start[n]) for n, tensor in run.client("c0").model().state_dict().items())


def test_more_clients_are_asked_and_the_first_ones_count(tmp_path):
    run = play(tmp_path, "sampling.clients=2", overselect=1.5)
    assert trips(run, 1) == {"c0": (8, "counted"), "c1": (15, "counted"), "c2": (33, "surplus")}
    assert ends(run) == [15, 30, 45]
    with pytest.raises(SettingsError, match=r"fleet\.overselect"):
        play(tmp_path, "sampling.kind=poisson", overselect=2, out="poisson")


def test_who_drops_out_is_noticed_when_the_answer_was_due(tmp_path):
    data = population()
    data["c2"]["profile"] = {"dropout": 0.9}
    run = play(tmp_path, data=data, out="dropping")
    outcomes = [trips(run, round)["c2"][1] for round in (1, 2, 3)]
    assert "dropped" in outcomes
    assert ends(run) == [33, 66, 99]
    again = play(tmp_path, "engine.name=local", "engine.workers=2", data=data, out="again")
    for table in ("clock", "metrics", "traffic"):
        assert (run.path / f"{table}.jsonl").read_bytes() == (again.path / f"{table}.jsonl").read_bytes()


def test_who_cannot_be_reached_is_not_asked_and_time_goes_on_until_somebody_can(tmp_path):
    data = population()
    data["c0"]["profile"] = {"available": "01:00-02:00"}
    run = play(tmp_path, data=data)
    assert set(trips(run, 1)) == {"c1", "c2"}
    for entry in data.values():
        entry["profile"] = {"available": "01:00-01:01"}
    run = play(tmp_path, "rounds=4", data=data, out="night")
    assert [row["asked"] for row in run.clock if not row["client"]] == [
        3600,
        3633,
        86400 + 3600,
        86400 + 3633,
    ]
    assert trips(run, 2)["c2"] == (3666, "dropped")  # the window closed at 3660


def test_others_are_drawn_in_place_of_those_that_cannot_be_reached(small_run):
    changes = ("sampling.clients=2", "fleet.devices={'8x8'={available='05:00-06:00'}}", "rounds=3")
    run = small_run(*changes)
    asked = [row for row in run.clock if row["client"]]
    assert len(asked) == 6
    assert {row["device"] for row in asked} == {"4x4"}


def test_frozen_layers_cost_less_and_their_seconds_a_sample_too(tmp_path):
    model = network()
    model[0].requires_grad_(False)
    settings = {**ROUNDS, "fleet": DEVICES, "engine": {"name": "debug", "device": "cpu"}}
    run = intarsia.run(settings, data=population(), model=copy.deepcopy(model), out=tmp_path / "frozen")
    # 24 forward, 12 for the weights of the last layer, in two epochs.
    assert [row["compute"] for row in run.clock[:3]] == [5 * 72 / 120, 12 * 72 / 120, 30 * 72 / 120]
    second = [row for row in run.clock if row["round"] == 2]
    assert second[0]["down"] == 60 / 124  # the frozen layer is held
    settings["fleet"] = DEVICES | {"deadline": 10}
    run = intarsia.run(settings, data=population(), model=copy.deepcopy(model), out=tmp_path / "late")
    late = [row for row in run.clock if row["client"] == "c2"]
    assert [row["outcome"] for row in late] == ["late"] * 3
    assert [row["down"] for row in late] == [1, 60 / 124, 60 / 124]  # held, though its answer did not count
    settings["fleet"] = DEVICES | {"seconds": 0.5}
    run = intarsia.run(settings, data=population(), model=copy.deepcopy(model), out=tmp_path / "measured")
    # A sample with everything trained is 60 multiplications and half a second.
    assert run.clock[1]["compute"] == 12 * 72 * 0.5 / 60


def test_multiplications_of_convolutions_and_recurrent_layers_are_counted(tmp_path):
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.convolution = nn.Conv1d(1, 2, 3)
            self.recurrent = nn.LSTM(2, 4, batch_first=True)
            self.head = nn.Linear(4, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            steps, _ = self.recurrent(self.convolution(x[:, None]).transpose(1, 2))
            return self.head(steps[:, -1])

    source = torch.Generator().manual_seed(0)
    x, y = torch.randn(9, 6, generator=source), torch.arange(9) % 3
    data = {"a": {"train": (x[:4], y[:4]), "test": (x[4:], y[4:])}}
    settings = {"rounds": 1, "fleet": {"speed": 1}, "engine": {"name": "debug", "device": "cpu"}}
    run = intarsia.run(settings, data=data, model=Net(), out=tmp_path / "r")
    convolution, recurrent, head = 4 * 3 * 2, 4 * (2 + 4) * 16, 4 * 3
    assert run.clock[0]["compute"] == 4 * (2 * convolution + 3 * recurrent + 3 * head)


@pytest.mark.parametrize("codec", ["int8", "topk"])
def test_seconds_follow_from_the_bytes_that_were_counted(codec, tmp_path):
    run = play(tmp_path, f"codec={codec}", "rounds=2")
    for row in (row for row in run.clock if row["client"]):
        for way in ("down", "up"):
            counted = sum(
                line["bytes"]
                for line in run.traffic
                if (line["round"], line["client"], line["direction"], line["purpose"])
                == (row["round"], row["client"], way, "train")
            )
            assert row[way] == counted / DEVICES[way]


def test_named_tensors_take_their_time_too(small_run):
    run = small_run(
        "method=fedmd", "population.public=0.2", "population.generations=['8x8']", "fleet.up=100", "rounds=1"
    )
    up = {row["client"]: row["up"] for row in run.clock if row["exchange"] == "predict"}
    rows = [r for r in run.traffic if r["exchange"] == "predict" and r["direction"] == "up" and r["block"]]
    assert up == {row["client"]: row["bytes"] / 100 for row in rows}
    assert len(up) == 8


def test_a_plan_says_how_long_a_round_takes_and_who_is_waited_for():
    plan = intarsia.preview(
        {**ROUNDS, "fleet": {**DEVICES, "devices": {"old": {"up": 1}}, "deadline": 20}},
        data={n: {**e, "device": "old" if n == "c0" else "new"} for n, e in population().items()},
        model=network(),
    )["fleet"]
    old, new = plan["devices"]
    assert (old["device"], old["up"], old["round"]) == ("old", 124, 130)
    assert (new["clients"], new["compute"], new["slowest"]) == (2, 21, 33)
    assert (plan["round"], plan["slowest"], plan["bottleneck"], plan["because_of"]) == (
        130,
        "c0",
        "old",
        "up",
    )
    assert (plan["waits"], plan["in_time"]) == (True, 1)
    assert "fleet" not in intarsia.preview(ROUNDS, data=population(), model=network())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["secure_sums.on=true"], "secure_sums: a fleet's clock"),
        (["privacy={clip=1, noise=1}"], "privacy: client-level"),
        (["fleet.devices={watch={speed=1}}"], "no client has the device watch"),
        (["method=fedbuff", "fleet.deadline=3"], "waits for nobody"),
        (["method=fedbuff", "merge=mean"], "needs its own merge"),
        (["method=fedbuff", "sharing=modfl", "sharing.cohorts=found"], "found groups"),
        (["method=fedbuff", "codec=int8", "codec.down=true"], "codec.down"),
        (["method=fedbuff", "sampling.replacement=true"], "one client after the other"),
    ],
)
def test_what_does_not_go_together_is_said_before_a_run(changes, message):
    with pytest.raises(SettingsError, match=message):
        intarsia.preview(
            {**ROUNDS, "fleet": DEVICES}, data=population((5, 12, 30, 8)), model=network(), changes=changes
        )


def test_a_run_does_not_go_on_with_another_table(tmp_path):
    table = tmp_path / "fleet.csv"
    table.write_text("client,speed\nc0,120\nc1,60\n")
    run = play(tmp_path, path=str(table))
    assert run.settings.fleet_hash
    given = {"data": population(), "model": network()}
    table.write_bytes(b"client,speed\r\nc1,60\r\nc0,120.0\r\n")  # says the same
    intarsia.resume(run.path, rounds=4, **given)
    table.write_text("client,speed\nc0,120\nc1,61\n")
    with pytest.raises(DataError, match=r"fleet\.csv does not say what it said .* set fleet_hash to nothing"):
        intarsia.resume(run.path, rounds=5, **given)
    again = intarsia.run(run.path / "settings.toml", changes=["fleet_hash="], out=tmp_path / "anew", **given)
    assert again.settings.fleet_hash not in ("", run.settings.fleet_hash)
    table.unlink()
    assert intarsia.open_run(run.path, **given).client("c0").model() is not None


def test_a_device_that_cannot_be_is_named_before_a_run_begins(tmp_path):
    data = population()
    data["c2"]["profile"] = {"up": 0}
    with pytest.raises(SettingsError, match="client 'c2' has up 0"):
        play(tmp_path, data=data)
    assert not (tmp_path / "r").exists()


def test_numbers_beyond_all_are_no_tracebacks(tmp_path):
    assert set(trips(play(tmp_path, "sampling.clients=1", overselect=1e308), 1)) == {"c0", "c1", "c2"}
    with pytest.raises(IntarsiaError, match="client 'c0' never answers"):
        play(tmp_path, speed=5e-324, out="slow")
