"""Same results, bit for bit, with every engine and any number of workers; errors that name the place."""

from __future__ import annotations

import multiprocessing
import os

import pytest
import torch
from torch import nn

import intarsia
from intarsia.blocks import DataError
from intarsia.data import Digits
from intarsia.engines import memory
from intarsia.methods import METHODS, Method, report
from tests.conftest import SMALL

TABLES = ("metrics", "traffic", "events")


def tables(run: intarsia.Run) -> dict[str, bytes]:
    return {name: (run.path / f"{name}.jsonl").read_bytes() for name in TABLES}


@pytest.mark.parametrize("method", sorted(METHODS))
def test_engines_agree_bit_for_bit(method, small_run):
    changes = [f"method={method}", "sampling.clients=5"]
    debug = small_run(*changes, "engine.name=debug", out="debug")
    one = small_run(*changes, "engine.name=local", "engine.workers=1", out="one")
    three = small_run(*changes, "engine.name=local", "engine.workers=3", out="three")
    assert tables(debug) == tables(one) == tables(three)
    for name in debug.clients:
        models = [run.client(name).model().state_dict() for run in (debug, one, three)]
        for key, tensor in models[0].items():
            assert torch.equal(tensor, models[1][key])
            assert torch.equal(tensor, models[2][key])


def test_dropout_batch_norm_and_convolutions_agree_too(small_run):
    def network(client: intarsia.ClientInfo) -> nn.Module:
        side = client.shape[-1]
        return nn.Sequential(
            nn.Conv2d(1, 4, 3, padding=1),
            nn.BatchNorm2d(4),
            nn.ReLU(),
            nn.Flatten(),
            nn.Dropout(0.5),
            nn.Linear(4 * side * side, 10),
        )

    runs = [
        small_run(f"engine.name={engine}", "engine.workers=2", "method=fedper", out=engine, model=network)
        for engine in ("debug", "local")
    ]
    assert tables(runs[0]) == tables(runs[1])
    one, two = (run.client("client-00").model().state_dict() for run in runs)
    assert all(torch.equal(tensor, two[key]) for key, tensor in one.items())
    assert one["1.num_batches_tracked"] > 0


def test_the_global_generator_is_left_alone(small_run):
    before = torch.get_rng_state()
    first = small_run(out="first")
    torch.rand(5)
    assert not torch.equal(before, torch.get_rng_state())
    torch.set_rng_state(before)
    second = small_run(out="second")
    assert torch.equal(before, torch.get_rng_state())
    assert tables(first) == tables(second)


class Breaking(nn.Module):
    """A network that cannot take some inputs."""

    def __init__(self, limit: float) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)
        self.limit = limit

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training and float(x.max()) > self.limit:
            raise ValueError("the sensor is off the scale")
        return self.layer(x)


def broken_population(broken: int, clients: int = 4) -> dict[str, dict[str, object]]:
    made = {}
    for i in range(clients):
        x = torch.full((6, 2), 100.0 if i < broken else 0.5)
        made[f"c{i}"] = {"train": (x, torch.arange(6) % 2), "test": (x, torch.arange(6) % 2)}
    return made


@pytest.mark.parametrize("engine", ["debug", "local"])
def test_a_client_that_raises_is_reported_and_the_round_goes_on(engine, small_run):
    run = small_run(
        f"engine.name={engine}",
        "engine.workers=2",
        "sharing.by=",
        out=engine,
        data=broken_population(1),
        model=Breaking(10),
    )
    assert run.summary["failed"] == 3
    event = run.events[0]
    assert (event["round"], event["client"], event["kind"], event["stage"]) == (1, "c0", "failed", "train")
    assert "client 'c0', round 1, exchange 'train', stage 'train'" in event["message"]
    assert "ValueError: the sensor is off the scale" in event["message"]
    assert 'raise ValueError("the sensor is off the scale")' in event["details"]


def test_too_few_updates_stop_the_run_with_its_state_saved(small_run, tmp_path):
    with pytest.raises(
        intarsia.RunStopped, match=r"(?s)2 of 4 updates were accepted, min_updates asks for 3.*resume"
    ):
        small_run("min_updates=3", "sharing.by=", data=broken_population(2), model=Breaking(10))
    folder = tmp_path / "run"
    run = intarsia.open_run(folder)
    assert run.summary["finished"] is False
    assert run.summary["rounds"] == 0
    assert [event["client"] for event in run.events] == ["c0", "c1"]
    # The sensors are mended: the run goes on, and the failures of the lost round are gone.
    mended = intarsia.resume(folder, data=broken_population(0), model=Breaking(10))
    assert mended.summary["finished"] is True
    assert mended.summary["failed"] == 0
    assert mended.events == []


@intarsia.part
class Poisoned(Method):
    """FedAvg in which one client sends what it must not."""

    name = "poisoned"
    title = "Poisoned"

    how: str = "nan"

    def local_step(self, step: str, client: intarsia.LocalClient) -> dict[str, object]:
        values = report(client.train(self.objective))
        if client.info.name == "client-01":
            with torch.no_grad():
                weight = next(client.model.parameters())
                weight[0, 0] = {"nan": torch.nan, "inf": torch.inf, "huge": 1e9}[self.how]
        return values


@pytest.mark.parametrize("engine", ["debug", "local"])
@pytest.mark.parametrize(
    ("how", "reason"), [("nan", "a NaN"), ("inf", "an infinity"), ("huge", "training diverged")]
)
def test_a_poisoned_update_is_refused_named_and_counted(how, reason, engine, small_run):
    run = small_run(
        f"engine.name={engine}", "engine.workers=2", "rounds=2", out=engine, method=Poisoned(how=how)
    )
    assert run.summary["refused"] == 2
    assert run.summary["failed"] == 0
    assert {(e["client"], e["block"], e["kind"]) for e in run.events} == {("client-01", "model", "refused")}
    assert "tensor 'hidden1.weight'" in run.events[0]["message"]
    assert reason in run.events[0]["message"]
    for name in run.clients:
        assert all(torch.isfinite(t).all() for t in run.client(name).model().state_dict().values())


def test_a_refused_client_keeps_its_former_state(small_run):
    """New client state counts only if its update was accepted."""
    run = small_run("sharing=fedper", "sharing.by=device", "rounds=2", method=Poisoned())
    state = run._folder.state_at()
    assert "client-01" not in state.clients
    assert "head" in state.clients["client-00"].state["private"]


@pytest.mark.parametrize("free", [0, 1 << 40])
def test_shared_memory_falls_back_to_mapped_files(free, monkeypatch):
    monkeypatch.setattr(memory.shutil, "disk_usage", lambda path: type("Usage", (), {"free": free})())
    before = set(os.listdir("/dev/shm")) if os.path.isdir("/dev/shm") else set()
    population = Digits(clients=4).load(0)
    shared = memory.share(population)
    for one, other in zip(population.tensors(), shared.tensors(), strict=True):
        assert torch.equal(one, other)
        assert other.data_ptr() % memory.ALIGNMENT == 0
    assert before == (set(os.listdir("/dev/shm")) if os.path.isdir("/dev/shm") else set())


def test_no_room_to_share_is_a_clear_error(monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(memory.os, "posix_fallocate", full, raising=False)
    with pytest.raises(DataError, match=r"No space left on device.*TMPDIR"):
        memory.share(Digits(clients=4).load(0))


@intarsia.part
class Dying(Method):
    """A method whose client takes its process down."""

    name = "dying"
    title = "Dying"

    def local_step(self, step: str, client: intarsia.LocalClient) -> dict[str, object]:
        if client.info.name == "client-02" and client.round == 2:
            os._exit(7)
        return report(client.train(self.objective))


def test_a_worker_that_dies_stops_the_run_with_its_state_saved(small_run, tmp_path):
    with pytest.raises(intarsia.RunStopped, match="ended by exit code 7 while it ran client 'client-02'"):
        small_run("engine.name=local", "engine.workers=2", method=Dying())
    assert intarsia.open_run(tmp_path / "run").summary["rounds"] == 1


def test_workers_end_with_the_engine(small_run):
    small_run("engine.name=local", "engine.workers=2")
    assert not [p for p in multiprocessing.active_children() if p.name == "intarsia-worker"]


def test_a_user_may_have_trained_in_this_process_before(small_run):
    """Workers are forked: autograd's threads of the parent must not hang them."""
    weight = torch.ones(3, requires_grad=True)
    (weight * 2).sum().backward()
    run = small_run("engine.name=local", "engine.workers=2", "rounds=1")
    assert run.summary["finished"]
    assert SMALL["rounds"] == 3
