"""Same results, bit for bit, with every engine and any number of workers; errors that name the place."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from dataclasses import replace
from typing import ClassVar

import pytest
import torch
from torch import nn

import intarsia
from intarsia.blocks import Block, BlockStore, Merge, Sums
from intarsia.clients import ClientRuntime
from intarsia.core import DataError, threads
from intarsia.data import Digits
from intarsia.engines import Job, LocalEngine
from intarsia.engines.dealing import dealt
from intarsia.engines.local import memory
from intarsia.engines.local.mailbox import Mailbox
from intarsia.experiment import Experiment, Given, load
from intarsia.federation import Planner
from intarsia.methods import METHODS, Method, report
from intarsia.runs import RunState
from intarsia.setup import Setup
from tests.conftest import NEEDS, SMALL, failures

TABLES = ("metrics", "traffic", "events", "judged", "notes")


def tables(run: intarsia.Run) -> dict[str, bytes]:
    return {name: (run.path / f"{name}.jsonl").read_bytes() for name in TABLES}


@pytest.mark.parametrize("method", ["fedavg", "fedmn", "pfedclub"])
def test_engines_agree_bit_for_bit(method, small_run):
    """With any number of workers; `tests/golden` holds both engines to one record for every method."""
    changes = [f"method={method}", "sampling.clients=5", *NEEDS.get(method, ())]
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
    event = failures(run)[0]
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
    assert [event["client"] for event in failures(run)] == ["c0", "c1"]
    # The model is mended: the run goes on, and the failures of the lost round are gone.
    mended = intarsia.resume(folder, data=broken_population(2), model=Breaking(1000))
    assert mended.summary["finished"] is True
    assert mended.summary["failed"] == 0
    assert failures(mended) == []


BY = "sharing.by=device"


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
        f"engine.name={engine}", "engine.workers=2", "rounds=2", BY, out=engine, method=Poisoned(how=how)
    )
    assert run.summary["refused"] == 2
    assert run.summary["failed"] == 0
    assert {(e["client"], e["block"], e["kind"]) for e in failures(run)} == {
        ("client-01", "model", "refused")
    }
    assert "tensor 'hidden1.weight'" in failures(run)[0]["message"]
    assert reason in failures(run)[0]["message"]
    for name in run.clients:
        assert all(torch.isfinite(t).all() for t in run.client(name).model().state_dict().values())


def test_a_refused_client_keeps_its_former_state(small_run):
    """New client state counts only if its update was accepted."""
    run = small_run("sharing=fedper", "sharing.by=device", "rounds=2", method=Poisoned())
    state = run.state()
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
class Endless(Merge):
    """A mean that becomes endless."""

    name = "endless"

    def finish(self, sums: Sums, present: Block) -> Block:
        merged = Merge.finish(self, sums, present)
        return Block({n: t * torch.inf for n, t in merged.tensors.items()}, present.buffers)


@pytest.mark.parametrize("changes", [(), ("codec=int8", "codec.down=true")])
def test_a_block_that_would_become_endless_stays_as_it_was(changes, small_run):
    same = ("sharing={}", "population.generations=['8x8']")
    run = small_run("rounds=3", *same, *changes, method=METHODS["fedavg"](merge=Endless()))
    assert run.summary["finished"]
    state = run.state()
    (start,) = state.initial.values()
    assert [state.pool.version(address) for address in state.pool] == [start["model"]]
    reason = (
        "model@all: its next version would hold a NaN or an infinity, the present one stays; often training diverges: "
        "try a smaller training.lr"
    )
    assert [(e["round"], e["kind"], e["message"]) for e in failures(run)] == [
        (round, "refused", reason) for round in (1, 2, 3)
    ]
    assert run.summary["refused"] == 3


def test_workers_end_with_the_engine(small_run):
    small_run("engine.name=local", "engine.workers=2")
    assert not [p for p in multiprocessing.active_children() if p.name == "intarsia-worker"]


def test_workers_end_by_themselves_while_those_of_a_later_engine_hold_their_pipes(tmp_path):
    setup = Experiment.build(load(SMALL)).setup
    first = LocalEngine(setup, BlockStore(tmp_path / "first"), workers=2)
    with LocalEngine(setup, BlockStore(tmp_path / "second"), workers=2):
        processes = [worker.process for worker in first._workers]
        first.close()
        assert [process.exitcode for process in processes] == [0, 0]  # none had to be killed


def test_workers_that_start_afresh_give_the_same(small_run, monkeypatch):
    """Where there is no fork (macOS, Windows), workers are spawned."""
    from types import SimpleNamespace

    from intarsia.engines.local import engine as local

    forked = small_run("engine.name=local", "engine.workers=2", "rounds=1", out="forked")
    monkeypatch.setattr(local, "sys", SimpleNamespace(platform="darwin"))
    spawned = small_run("engine.name=local", "engine.workers=2", "rounds=1", out="spawned")
    assert tables(forked) == tables(spawned)


def test_a_user_may_have_trained_in_this_process_before(small_run):
    """Workers are forked: autograd's threads of the parent must not hang them."""
    weight = torch.ones(3, requires_grad=True)
    (weight * 2).sum().backward()
    run = small_run("engine.name=local", "engine.workers=2", "rounds=1")
    assert run.summary["finished"]
    assert SMALL["rounds"] == 3


def images(count: int = 3) -> dict[str, dict[str, object]]:
    source = torch.Generator().manual_seed(0)
    x, y = torch.randn(12, 3, 8, 8, generator=source), torch.arange(12) % 2
    return {f"c{i}": {"train": (x + i, y), "test": (x[:6] - i, y[:6])} for i in range(count)}


def everywhere(tmp_path, changes=(), **given) -> list[intarsia.Run]:
    """Run the same with debug and with one, two and three workers."""
    runs = []
    for name, workers in (("debug", 0), ("local", 1), ("local", 2), ("local", 3)):
        engine = {"name": name, "workers": workers, "device": "cpu"}
        settings = {"rounds": 2, "training": {"lr": 0.05}, "engine": engine}
        runs.append(intarsia.run(settings, changes=changes, out=tmp_path / f"{name}{workers}", **given))
    return runs


def agree(runs: list[intarsia.Run]) -> bool:
    return all(tables(run) == tables(runs[0]) for run in runs)


class Flattening(nn.Module):
    """Flattens with view, which images with the channels last do not allow."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1)
        self.head = nn.Linear(256, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.conv(x).view(x.size(0), -1))


def test_models_that_flatten_with_view(tmp_path):
    runs = everywhere(tmp_path, data=images(), model=Flattening())
    assert agree(runs)
    assert runs[0].summary["failed"] == 0


def test_three_dimensional_convolutions(tmp_path):
    data = {n: {s: (x.unsqueeze(1), y) for s, (x, y) in c.items()} for n, c in images().items()}
    model = nn.Sequential(nn.Conv3d(1, 2, 3, padding=1), nn.Flatten(), nn.Linear(2 * 192, 2))
    assert agree(everywhere(tmp_path, data=data, model=model))


def test_batch_norm_on_unscaled_inputs(tmp_path):
    data = {n: {s: (300 * x.flatten(1), y) for s, (x, y) in c.items()} for n, c in images().items()}
    runs = everywhere(tmp_path, data=data, model=nn.Sequential(nn.BatchNorm1d(192), nn.Linear(192, 2)))
    assert agree(runs)
    assert runs[0].summary["refused"] == 0


def test_models_in_double_precision_agree_under_nova(tmp_path):
    class Double(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(192, 2, dtype=torch.float64)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(x.flatten(1).double())

    assert agree(everywhere(tmp_path, ["method=fednova"], data=images(), model=Double()))


@intarsia.part
class BaseOnly(Method):
    """FedPer whose first exchange fetches and trains the base alone."""

    name = "base-only"
    title = "Base only"

    def round(self, server):
        base = lambda client: {"base"}  # noqa: E731
        yield intarsia.Exchange("base", fetch=base)
        yield intarsia.Exchange("train")


def test_blocks_that_are_not_fetched_are_the_clients_own(tmp_path):
    runs = everywhere(
        tmp_path, ["sharing=fedper", "rounds=3"], data=images(5), model=Flattening(), method=BaseOnly()
    )
    assert agree(runs)


class Remembering(nn.Module):
    """Keeps something in a buffer that is no part of the state."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(192, 2)
        self.register_buffer("seen", torch.zeros(192), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        flat = x.flatten(1)
        if self.training:
            self.seen = 0.5 * self.seen + 0.5 * flat.mean(0).detach()
        return self.layer(flat - self.seen)


def test_scratch_buffers_do_not_pass_from_client_to_client(tmp_path):
    assert agree(everywhere(tmp_path, data=images(5), model=Remembering()))


class Careless(nn.Module):
    """Changes its input in place."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(192, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x.sub_(1).flatten(1))


def test_a_model_cannot_change_the_data(tmp_path):
    data = images()
    before = [t.clone() for c in data.values() for pair in c.values() for t in pair]
    assert agree(everywhere(tmp_path, data=data, model=Careless()))
    after = [t for c in data.values() for pair in c.values() for t in pair]
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


def test_client_state_is_plain_and_the_same_everywhere(tmp_path):
    @intarsia.part
    class Counting(Method):
        """FedAvg whose clients count their rounds under a number as key."""

        name = "counting"
        title = "Counting"

        def local_step(self, step, client):
            client.state[0] = client.state.get("0", 0) + 1
            return report(client.train(self.objective)) | {"rounds": client.state[0]}

    runs = everywhere(tmp_path, data=images(), model=Flattening(), method=Counting())
    assert agree(runs)
    assert runs[0].state().clients["c0"].state["values"]["0"] == 2


def test_a_frozen_block_travels_once_and_stays_the_same(tmp_path):
    model = nn.Sequential(nn.Flatten(), nn.Linear(192, 8), nn.Linear(8, 2))
    model[1].requires_grad_(False)
    with torch.no_grad():
        model[1].weight.mul_(1e-6)
    start = model[1].weight.clone()
    cut = ['cut.base=["1.*"]', 'cut.head=["2.*"]', "sampling.clients=2", "rounds=4"]
    run = everywhere(tmp_path, cut, data=images(), model=model)[2]
    base = [r for r in run.traffic if r["block"] == "base" and r["purpose"] == "train"]
    assert sorted((r["client"], r["direction"]) for r in base) == [(f"c{i}", "down") for i in range(3)]
    assert torch.equal(run.client("c0").model()[1].weight, start)


@intarsia.part
class Lying(Method):
    """FedAvg in which one client reports what is no number, or cannot travel."""

    name = "lying"
    title = "Lying"

    how: str = ""

    def local_step(self, step, client):
        values = report(client.train(self.objective))
        wrong = {
            "n": {"n": "3"},
            "loss": {"loss": None},
            "tensor": {"extra": torch.zeros(2)},
            "zero": {"n": 0},
        }
        return values | (wrong[self.how] if client.info.name == "c1" else {})


@pytest.mark.parametrize("engine", ["debug", "local"])
@pytest.mark.parametrize(
    ("how", "kind", "message"),
    [
        ("n", "refused", "reports n = '3', which is no whole number"),
        ("loss", "refused", "reports loss = None"),
        ("tensor", "failed", "values that cannot travel"),
        ("zero", None, ""),
    ],
)
def test_useless_values_of_one_client_do_not_stop_the_run(how, kind, message, engine, tmp_path):
    settings = {"rounds": 2, "engine": {"name": engine, "workers": 2, "device": "cpu"}}
    run = intarsia.run(settings, data=images(), model=Flattening(), method=Lying(how=how), out=tmp_path / "r")
    assert run.summary["finished"]
    assert {(e["client"], e["kind"]) for e in failures(run)} == ({("c1", kind)} if kind else set())
    assert all(message in e["message"] for e in failures(run))


@intarsia.part
class Falling(intarsia.Merge):
    """A merge that raises."""

    name = "falling"

    def add(self, sums, present, update, samples, values):
        raise ArithmeticError("no such sum")


@pytest.mark.parametrize("engine", ["debug", "local"])
def test_a_merge_that_raises_is_named(engine, tmp_path):
    @intarsia.part
    class Fallen(Method):
        """FedAvg with it."""

        name = "fallen"
        title = "Fallen"

    settings = {"rounds": 1, "engine": {"name": engine, "workers": 2, "device": "cpu"}}
    with pytest.raises(
        intarsia.RunStopped, match="client 'c0', round 1, exchange 'train', stage 'merge': Arithmetic"
    ):
        intarsia.run(
            settings, data=images(), model=Flattening(), method=Fallen(merge=Falling()), out=tmp_path / "r"
        )


def test_clients_that_could_not_be_evaluated_are_counted(tmp_path):
    class Picky(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(2, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if not self.training and float(x.max()) > 10:
                raise ValueError("too hot")
            return self.layer(x)

    data = broken_population(1)
    data = {name: data[name] for name in ("c1", "c0", "c2", "c3")}
    run = intarsia.run(
        {"rounds": 1, "engine": {"name": "debug", "device": "cpu"}},
        data=data,
        model=Picky(),
        out=tmp_path / "r",
    )
    assert (run.summary["clients"], run.summary["evaluated"]) == (4, 3)


def test_closing_busy_workers_is_quick(tmp_path):
    @intarsia.part
    class Sleeping(Method):
        """A step that takes long."""

        name = "sleeping"
        title = "Sleeping"

        def local_step(self, step, client):
            time.sleep(60)
            return {}

    class Impatient(intarsia.Observer):
        def exchange_started(self, round: int, name: str, clients: int) -> None:
            threading.Timer(0.5, lambda: os.kill(os.getpid(), signal.SIGINT)).start()

    start = time.monotonic()
    settings = {"rounds": 1, "engine": {"name": "local", "workers": 4, "device": "cpu"}}
    with pytest.raises(KeyboardInterrupt):
        intarsia.run(
            settings,
            data=images(),
            model=Flattening(),
            method=Sleeping(),
            out=tmp_path / "r",
            observer=Impatient(),
        )
    assert time.monotonic() - start < 30


def spread(clients: int = 9) -> dict[str, dict[str, object]]:
    """Clients with different numbers of samples."""
    torch.manual_seed(1)
    made = {}
    for i in range(clients):
        x, y = torch.randn(30 + 7 * i, 20), torch.randint(0, 3, (30 + 7 * i,))
        made[f"c{i}"] = {"train": (x[:-5], y[:-5]), "test": (x[-5:], y[-5:])}
    return made


@pytest.mark.parametrize("method", ["fedavg", "fedprox", "fedper"])
def test_clients_that_train_together_get_the_bits_of_clients_alone(method, tmp_path):
    changes = [f"method={method}", "model={name='mlp', hidden=[9]}", "training.momentum=0.5"]
    runs = everywhere(tmp_path, [*changes, "sampling.clients=7", "rounds=3"], data=spread())
    assert agree(runs)
    assert all(run.settings.training.batched is True for run in runs)
    alone = everywhere(tmp_path / "alone", [*changes, "training.batched=false"], data=spread())[0]
    assert alone.settings.training.batched is False


def motion(clients: int = 7) -> dict[str, dict[str, object]]:
    """Clients with series of two lengths, which one LSTM takes."""
    torch.manual_seed(1)
    made = {}
    for i in range(clients):
        x, y = torch.randn(30 + 7 * i, 6 + 2 * (i % 2), 3), torch.randint(0, 3, (30 + 7 * i,))
        made[f"c{i}"] = {"train": (x[:-5], y[:-5]), "test": (x[-5:], y[-5:])}
    return made


def test_lstms_that_train_together_get_the_bits_of_clients_alone(tmp_path, monkeypatch):
    changes = ["method=modfl", "model={name='modular_lstm', units=5}", "training.batched=lstm"]
    runs = everywhere(tmp_path, [*changes, "training.momentum=0.5", "rounds=3"], data=motion())
    assert agree(runs)
    assert all(run.settings.training.batched == "lstm" for run in runs)
    settings = load({**SMALL, "sharing": {}}, changes)
    setup = Experiment.build(settings, Given(data=motion())).setup
    jobs, _ = jobs_of(setup, "train", "train")
    together = [
        {job.task.client for job in jobs if setup.stack(job.task)[0] == stack}
        for stack in stacks(setup, jobs)
    ]
    assert together == [{"c0", "c2", "c4", "c6"}, {"c1", "c3", "c5"}]
    scored, _ = jobs_of(setup, "evaluate", "evaluate")
    assert not any(setup.scores_together(job.task) for job in scored)


def stacks(setup: Setup, jobs: list[Job]) -> list[object]:
    return list(dict.fromkeys(setup.stack(job.task)[0] for job in jobs))


def jobs_of(setup: Setup, step: str, purpose: str) -> tuple[list[Job], dict[str, Block]]:
    planner, exchange = Planner(setup), intarsia.Exchange(step)
    plan = planner.plan(exchange, planner.weights(), planner.setup.addresses, purpose)
    return planner.jobs(RunState("run", setup.initial_pool(), 1), plan, exchange)


def chains() -> Setup:
    settings = {**SMALL, "model": {"name": "mlp", "hidden": [9]}, "sharing": {}}
    return Experiment.build(load(settings), Given(data=spread())).setup


@pytest.mark.parametrize(
    ("change", "together"),
    [
        ("method=fedavg", True),
        ("training.batched=false", False),
        ("method=fedper", False),
        ("method=fedavg+", False),
        ("training.optimizer=adam", True),
    ],
)
def test_only_scores_of_one_shared_model_are_made_together(change, together):
    setup = Experiment.build(load({**SMALL, "sharing": {}}, [change]), Given(data=spread())).setup
    jobs, _ = jobs_of(setup, "evaluate", "evaluate")
    assert {setup.scores_together(job.task) for job in jobs} == {together}


def test_large_clients_are_scored_alone():
    data = spread(2)
    data["c1"]["test"] = (torch.zeros(300, 20), torch.zeros(300, dtype=torch.long))
    setup = Experiment.build(load({**SMALL, "sharing": {}}), Given(data=data)).setup
    jobs, _ = jobs_of(setup, "evaluate", "evaluate")
    assert [setup.scores_together(job.task) for job in jobs] == [True, False]


def test_workers_take_what_trains_together_and_leave_the_others_their_share():
    setup = chains()
    jobs, _ = jobs_of(setup, "train", "train")
    groups = [[job.task.client for job in group] for group in dealt(setup, jobs, 5)]
    assert groups == [["c8", "c7", "c6", "c5", "c4"], ["c3", "c2", "c1", "c0"]]


def test_busy_workers_have_their_next_job_and_the_last_jobs_go_to_who_is_free(tmp_path, monkeypatch):
    """Nine jobs, two workers: two jobs at once, five ahead, the last two when a worker waits."""
    setup = Experiment.build(
        load({**SMALL, "sharing": {}}, ["training.batched=false"]), Given(data=spread(9))
    ).setup
    jobs, content = jobs_of(setup, "train", "train")
    real, ahead = Mailbox.send_ahead, []

    def spy(self, header):
        ahead.extend(job["task"]["client"] for job in header["jobs"])
        return real(self, header)

    monkeypatch.setattr(Mailbox, "send_ahead", spy)
    with LocalEngine(setup, BlockStore(tmp_path), workers=2) as engine:
        order = [job.task.client for group in dealt(setup, jobs, 5) for job in group]
        replies = list(engine.exchange(jobs, content, None, keep_blocks=False))
    assert ahead == order[2:7]
    assert sorted(reply.client for reply in replies) == sorted(order)


@pytest.mark.parametrize("step", ["train", "evaluate"])
def test_what_goes_together_is_not_done_one_by_one(step, tmp_path, monkeypatch):
    setup = chains()
    jobs, content = jobs_of(setup, step, step)
    tasks = [(job.task, job.state) for job in jobs]
    alone = [ClientRuntime(setup, BlockStore(tmp_path)).run(*task, content.__getitem__) for task in tasks]
    monkeypatch.delattr(ClientRuntime, "run")
    together = ClientRuntime(setup, BlockStore(tmp_path)).run_together(tasks, content.__getitem__)
    assert [a.update.to_bytes() for a in together] == [a.update.to_bytes() for a in alone]


def test_a_client_that_cannot_train_is_named_and_those_beside_it_train(tmp_path):
    data = spread(4)
    good = intarsia.from_dict(data)
    client = good.clients["c2"]
    # A label that the model has no output for; such data is refused when it is read, so it is put in here.
    train = replace(client.data["train"], y=torch.full_like(client.data["train"].y, 9))
    wrong = replace(client, data={**client.data, "train": train})
    data = replace(good, clients={**good.clients, "c2": wrong})
    changes = ["model={name='mlp', hidden=[9]}"]
    runs = everywhere(tmp_path, changes, data=data)
    assert agree_but_for_details(runs)
    for run in runs:
        # What the client says of its training labels at the end is refused too: there is no such label.
        assert {(e["client"], e["stage"]) for e in failures(run)} == {("c2", "train"), ("c2", "merge")}
        assert {row["client"] for row in run.metrics if row["split"] == "train"} == {"c0", "c1", "c3"}


def test_what_fails_side_by_side_alone_is_an_error(tmp_path, monkeypatch):
    """Each client can train alone: then the fault is ours, and a way round it would hide it."""

    def broken(*_: object) -> None:
        raise ArithmeticError("stacked wrongly")

    monkeypatch.setattr("intarsia.clients.runtime.train_together", broken)
    changes = ["model={name='mlp', hidden=[9]}", "engine={name='local', workers=1}", "rounds=1"]
    with pytest.raises(
        intarsia.IntarsiaError, match="stage 'side by side': ArithmeticError: stacked wrongly"
    ):
        intarsia.run({}, data=spread(4), changes=changes, out=tmp_path / "r")


def agree_but_for_details(runs: list[intarsia.Run]) -> bool:
    return all(run.metrics == runs[0].metrics and run.traffic == runs[0].traffic for run in runs)


@pytest.mark.parametrize("change", ["codec=int8", "sampling.newcomers=2", "sampling.replacement=true"])
def test_clients_together_with_codecs_newcomers_and_doubles(change, tmp_path):
    changes = ["model={name='mlp', hidden=[9]}", "sampling.clients=5", "rounds=3", change]
    assert agree(everywhere(tmp_path, changes, data=spread()))


def test_a_run_computes_with_one_thread_and_leaves_the_number_as_it_was(small_run):
    class Threads(intarsia.Observer):
        seen: ClassVar[list[int]] = []

        def round_done(self, report: intarsia.RoundReport) -> None:
            self.seen.append(torch.get_num_threads())

    with threads(2):
        small_run("rounds=2", observer=Threads())
        assert torch.get_num_threads() == 2
    assert Threads.seen == [1, 1]
