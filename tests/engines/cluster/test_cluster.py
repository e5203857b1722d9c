"""Runs on a real cluster: the bits of `local`, whatever happens to its workers."""

from __future__ import annotations

import asyncio
import os
import pickle
import subprocess
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import intarsia
from intarsia.cli.app import app
from intarsia.core import DataError, IntarsiaError, SettingsError
from intarsia.engines import engine as engines
from intarsia.engines.cluster import jobs, members, own_blocks
from intarsia.engines.cluster.engine import DaskEngine
from intarsia.engines.cluster.jobs import ClusterJob, JobRunner, Outcome
from intarsia.engines.cluster.pickled import pickled
from intarsia.experiment import Experiment, load
from intarsia.methods import Method, report
from intarsia.papers.runner import _check_done
from intarsia.runs import RunFolder
from intarsia.tuning import tune
from tests.conftest import NEEDS, SMALL, failures
from tests.engines.cluster.conftest import ROOT, Up
from tests.golden.plays import FOUND

distributed = pytest.importorskip("distributed")
PARTLY = "sampling.clients=5"


def tables(run: intarsia.Run) -> list[bytes]:
    return [(run.path / f"{name}.jsonl").read_bytes() for name in ("metrics", "traffic", "groups", "notes")]


def states(run: intarsia.Run) -> dict[str, object]:
    return {name: record.to_json() for name, record in run.state().clients.items()}


@pytest.mark.parametrize(
    "changes",
    [
        ["method=fedavg", PARTLY],
        ["method=fedper", "codec={name='topk', down=true}", PARTLY, "training.batched=false"],
        ["method=fedmn", *NEEDS["fedmn"], "rounds=2"],
        FOUND,
        ["method=pfedclub", *NEEDS["pfedclub"], PARTLY, "rounds=2"],
        ["method=fedper", "adapters={name='parallel', rank=2}", PARTLY],
    ],
    ids=["fedavg", "fedper with topk", "fedmn", "found cohorts", "pfedclub", "adapters"],
)
def test_a_cluster_gives_the_bits_of_local(changes, up, small_run, monkeypatch):
    local = small_run(*changes, "engine.name=local", "engine.workers=2", out="local")
    monkeypatch.setattr(engines, "one_by_one", None)  # the server's own work is not done here
    run = small_run(*changes, *up.engine, out="dask")
    assert tables(run) == tables(local)
    assert states(run) == states(local)
    assert failures(run) == failures(local)


class Killing(intarsia.Observer):
    """Kills a worker after the second reply of the training of the second round."""

    def __init__(self, up: Up) -> None:
        self.up, self.replies, self.now = up, 0, False

    def exchange_started(self, round: int, name: str, clients: int) -> None:
        self.replies, self.now = 0, (round, name) == (2, "train")

    def replied(self, reply: object) -> None:
        self.replies += 1
        if self.now and self.replies == 2:
            self.up.kill_a_worker()


def test_a_worker_that_is_killed_changes_nothing(up, small_run):
    changes = ("method=fedper", "training.batched=false", PARTLY)
    local = small_run(*changes, "engine.name=local", "engine.workers=2", out="local")
    run = small_run(*changes, *up.engine, out="dask", observer=Killing(up))
    assert tables(run) == tables(local)
    assert states(run) == states(local)
    (event,) = failures(run)
    assert (event["kind"], event["stage"]) == ("died", "worker")
    assert "has gone" in event["message"]


def await_both(up: Up) -> None:
    """Wait until there is another for a worker that was killed."""
    with distributed.Client(up.address, set_as_default=False) as client:
        client.wait_for_workers(2, timeout=60)


def test_a_scheduler_that_is_lost_stops_the_run_and_blames_no_client(up, small_run, tmp_path, monkeypatch):
    """Workers end with their scheduler: whoever they were at is not left out, and the run can be gone on with."""
    changes = ("method=fedper", "training.batched=false", PARTLY)
    await_both(up)
    with monkeypatch.context() as patched:
        patched.setattr(members.Cluster, "alive", lambda self: False)
        with pytest.raises(
            IntarsiaError, match="has lost its scheduler, and workers end with it: start both"
        ):
            small_run(*changes, *up.engine, out="dask", observer=Killing(up))
    run = intarsia.resume(tmp_path / "dask")
    assert tables(run) == tables(small_run(*changes, out="local"))


def test_connections_end_whatever_has_become_of_the_scheduler(up):
    cluster = members.Cluster(up.address, None, JobRunner)
    assert cluster.alive()
    cluster._client.close()
    assert not cluster.connected
    assert not cluster.alive()
    cluster.close()


def status(up: Up, address: str, now: str) -> None:
    """Let the scheduler say that a worker is paused, as it does when the worker says so."""

    def told(dask_scheduler: Any) -> None:
        dask_scheduler.handle_worker_status_change(now, address, "test")

    with distributed.Client(up.address, set_as_default=False) as client:
        client.run_on_scheduler(told)


class Pausing(intarsia.Observer):
    """Pauses a worker after the first round, another after the second, and lets both go on after the third."""

    def __init__(self, up: Up) -> None:
        self.up = up
        self.clusters: set[members.Cluster] = set()
        self.given: set[str] = set()
        self.rounds: list[set[str]] = []

    def round_done(self, report: object) -> None:
        self.rounds.append(self.given)
        self.given = set()
        first, second = sorted(self.rounds[0])
        changes = {1: [first], 2: [second], 3: [first, second]}
        for address in changes.get(len(self.rounds), []):
            self.change(address, "running" if len(self.rounds) == 3 else "paused")

    def change(self, address: str, now: str) -> None:
        status(self.up, address, now)
        (cluster,) = self.clusters
        end = time.monotonic() + 30
        while cluster.paused(address) != (now == "paused"):
            assert time.monotonic() < end
            time.sleep(0.01)


def test_a_paused_worker_is_given_nothing_while_there_are_others(up, small_run, monkeypatch):
    def call(cluster, member, method, *arguments):
        pausing.clusters.add(cluster)
        pausing.given.add(member.address)
        usual(cluster, member, method, *arguments)

    await_both(up)
    usual, pausing = members.Cluster.call, Pausing(up)
    monkeypatch.setattr(members.Cluster, "call", call)
    changes = ("method=fedper", "training.batched=false", "rounds=4")
    run = small_run(*changes, *up.engine, out="dask", observer=pausing)
    assert tables(run) == tables(small_run(*changes, out="local"))
    assert [len(addresses) for addresses in pausing.rounds] == [2, 1, 2, 2]  # both paused: as if neither were


@intarsia.part
class Own(Method):
    """A method that workers know from being given it."""

    name = "own"
    title = "Own"

    def local_step(self, step: str, client: intarsia.LocalClient) -> dict[str, object]:
        return report(client.train(self.objective))


def data(clients: int = 3) -> dict[str, dict[str, object]]:
    source = torch.Generator().manual_seed(0)
    x, y = torch.randn(12, 5, generator=source), torch.arange(12) % 2
    return {f"c{i}": {"train": (x + i, y), "test": (x[:6] - i, y[:6])} for i in range(clients)}


def test_own_data_models_and_methods(up, tmp_path):
    given = {"data": data(), "model": nn.Linear(5, 2), "method": Own()}
    settings = {"rounds": 2, "training": {"lr": 0.1, "batch_size": 4}}
    run = intarsia.run(settings, **given, changes=up.engine, out=tmp_path / "dask")
    local = intarsia.run(settings, **given, changes=["engine.name=debug"], out=tmp_path / "debug")
    assert tables(run) == tables(local)


def test_a_model_whose_code_workers_do_not_have_is_named(up, tmp_path, monkeypatch):
    (tmp_path / "only_here.py").write_text(
        "from torch import nn\n\nclass Net(nn.Linear):\n    def __init__(self):\n        super().__init__(5, 2)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    import only_here

    words = r"worker tcp://.* cannot take part: .*No module named 'only_here'.*PYTHONPATH"
    with pytest.raises(SettingsError, match=words):
        intarsia.run(
            {"rounds": 1}, data=data(), model=only_here.Net(), changes=up.engine, out=tmp_path / "run"
        )


class Stopping(intarsia.Observer):
    def wants_stop(self) -> bool:
        return True


class Interrupting(intarsia.Observer):
    def replied(self, reply: object) -> None:
        raise KeyboardInterrupt


def left_in(up: Up) -> dict[str, object]:
    with distributed.Client(up.address, set_as_default=False) as client:
        return dict(client.run_on_scheduler(lambda dask_scheduler: dict(dask_scheduler.tasks)))


def test_a_run_goes_on_where_it_was_stopped_and_leaves_the_cluster_clean(up, small_run):
    whole = small_run("method=fedper", out="whole")
    stopped = small_run("method=fedper", *up.engine, out="stopped", observer=Stopping())
    assert stopped.summary["rounds"] == 1
    with pytest.raises(KeyboardInterrupt, match="The state after round 1 is saved"):
        intarsia.resume(stopped.path, observer=Interrupting())
    assert not left_in(up)
    assert tables(intarsia.resume(stopped.path)) == tables(whole)


OTHER = """
import intarsia.core.versions as versions
versions.__version__ = "0.0.1"
from distributed.cli.dask_worker import main
main()
"""


def test_a_worker_with_another_version_is_refused_by_name(up, small_run):
    options = ["--host", "127.0.0.1", "--no-dashboard", "--no-nanny", "--nthreads", "1", "--name", "other"]
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    worker = subprocess.Popen(
        [sys.executable, "-c", OTHER, up.address, *options],
        env={**os.environ, "PYTHONPATH": path},
        stderr=subprocess.DEVNULL,
    )
    try:
        with distributed.Client(up.address, set_as_default=False) as client:
            client.wait_for_workers(3, timeout=60)
        words = r"worker tcp://.* cannot take part: it has intarsia 0\.0\.1, here is intarsia .*: install the same"
        with pytest.raises(SettingsError, match=words):
            small_run(*up.engine)
    finally:
        worker.kill()
        worker.wait()


def test_a_worker_without_the_arithmetic_of_the_run_is_refused_by_name(monkeypatch):
    """This machine has bf16, or is told so; a worker says that it has none."""
    monkeypatch.setattr("intarsia.engines.cluster.engine.instructions", lambda device: "AVX512_BF16")
    setup = Experiment.build(load(SMALL, ["training.precision=bf16", "engine.allow_slow=true"])).setup
    engine = object.__new__(DaskEngine)
    engine.setup, engine._recipe = setup, (b"", "cpu")

    class Worker:
        async def build(self, recipe, device):
            return {"split": setup.population.split_hash, "initial": {}, "bf16": False}

    with pytest.raises(SettingsError, match="no instructions for bf16, this machine has"):
        asyncio.run(engine._prepare(Worker()))


def test_encrypted_clusters(small_run, tmp_path):
    from intarsia.flower.operating import certs

    certs.make(tmp_path / "certs", [])
    ca, pem, key = (str(tmp_path / "certs" / name) for name in ("ca.crt", "server.pem", "server.key"))
    security = distributed.Security(
        tls_ca_file=ca,
        require_encryption=True,
        **{
            f"tls_{who}_{what}": file
            for who in ("scheduler", "worker", "client")
            for what, file in (("cert", pem), ("key", key))
        },
    )
    files = [f"engine.ca={ca}", f"engine.certificate={pem}", f"engine.key={key}"]
    with distributed.LocalCluster(
        1, processes=False, protocol="tls://", host="127.0.0.1", security=security, dashboard_address=None
    ) as cluster:
        where = ["engine.name=dask", f"engine.scheduler={cluster.scheduler_address}"]
        run = small_run("rounds=1", *where, *files, out="tls")
        base = {**SMALL, "rounds": 1, "population": {**SMALL["population"], "validation": 0.2}}
        asked: dict[str, Any] = {"grid": {"training.lr": [0.1]}, "scheduler": cluster.scheduler_address}
        (trial,) = tune(base, **asked, changes=files, out=tmp_path / "tune").trials
        assert trial.state == "done"
        with pytest.raises(SettingsError, match=r"engine\.ca: TLS needs all of ca, certificate, key"):
            tune(base, **asked, out=tmp_path / "untold")
    assert tables(run) == tables(small_run("rounds=1", out="debug"))
    with pytest.raises(SettingsError, match=r"engine\.ca: TLS needs all of ca, certificate, key"):
        small_run(*where)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (["engine.name=dask"], 'engine.scheduler: engine "dask" needs the address of a scheduler'),
        (["engine.name=dask", "engine.scheduler=tcp://127.0.0.1:9"], "no scheduler that can be talked to"),
        (
            ["engine.name=dask", "engine.scheduler=tcp://127.0.0.1:9", "engine.ca=ca.pem"],
            "engine.certificate: TLS",
        ),
        (
            ["engine.name=dask", "engine.scheduler=tcp://127.0.0.1:9", "secure_sums.on=true"],
            "secure_sums: on a cluster",
        ),
    ],
)
def test_what_cannot_be_reached_is_said(changes, words, small_run, monkeypatch):
    monkeypatch.setattr(members, "PATIENCE", 0.5)
    with pytest.raises(SettingsError, match=words):
        small_run(*changes)


def test_views_travel_without_what_lies_under_them():
    large = torch.arange(100_000.0)
    sent = pickled([large[i : i + 10] for i in range(0, 1000, 10)])
    assert len(sent) < 100_000
    assert torch.equal(torch.cat(pickle.loads(sent)), large[:1000])  # noqa: S301 - just written


def test_settings_of_other_engines_do_not_speak_of_clusters():
    settings = load(SMALL)
    assert "scheduler" not in settings.to_toml()
    clustered = load(SMALL, ["engine.ca=certs/ca.pem"])
    assert clustered.engine.ca == str(Path("certs/ca.pem").absolute())


def test_a_worker_keeps_only_so_many_own_blocks(up, small_run, monkeypatch):
    """Clients' blocks that a worker had to forget are sent again."""
    monkeypatch.setattr(own_blocks, "MOST", 1)
    run = small_run("method=fedper", "rounds=2", *up.engine, out="dask")
    assert tables(run) == tables(small_run("method=fedper", "rounds=2", out="debug"))


def test_pieces_of_the_servers_work(up, tmp_path):
    experiment = Experiment.build(load(SMALL, up.engine))
    folder = RunFolder.create(tmp_path / "run", experiment.settings.to_toml())
    mark = tmp_path / "mark"

    def piece(number: int) -> int:
        if number == 3:
            raise ValueError("the third is bad")
        if number == 5 and not mark.exists():
            mark.touch()
            os._exit(3)
        return number * number

    with experiment.engine(folder) as engine:
        assert isinstance(engine, DaskEngine)
        assert engine.each(piece, [0, 1, 2, 4, 5, 6]) == [0, 1, 4, 16, 25, 36]
        (event,) = engine.happened()
        assert "others do its work" in event.message
        with pytest.raises(ValueError, match="the third is bad"):
            engine.each(piece, [2, 3, 4])
    folder.close()


def test_searches_spread_their_runs(up, tmp_path):
    base = {**SMALL, "rounds": 1, "population": {**SMALL["population"], "validation": 0.2}}
    here, there = (tmp_path / name for name in ("here", "there"))
    mean = tune(base, grid={"training.lr": [0.1]}, out=here).best.mean
    assert tune(base, grid={"training.lr": [0.1]}, out=there, scheduler=up.address).best.mean == mean
    assert sorted(path.name for path in (there / "trials").iterdir()) == ["1-lr=0.1-seed-0"]
    assert not left_in(up)
    # Nothing is left to do: nobody is asked.
    assert tune(base, grid={"training.lr": [0.1]}, out=there, scheduler="tcp://127.0.0.1:9").best.mean == mean


def test_studies_leave_out_what_workers_have_no_data_for(tmp_path):
    wrong = Outcome(ClusterJob("one", print, tmp_path), "DataError", "no such file there")
    with pytest.raises(DataError, match="no such file there"):
        _check_done(tmp_path, {tmp_path: wrong})
    with pytest.raises(IntarsiaError, match="out of luck"):
        _check_done(tmp_path, {tmp_path: replace(wrong, kind="ValueError", message="out of luck")})
    _check_done(tmp_path, {})


def test_folders_that_workers_do_not_see_are_sent_back(tmp_path):
    runner, place = JobRunner(), tmp_path / "runs" / "run"
    scratch = runner._scratch = tmp_path / "scratch"
    runner._sent_back = True
    (scratch / "folder" / "state").mkdir(parents=True)
    (scratch / "folder" / "state" / "file").write_text("made there")
    (place / "old").mkdir(parents=True)
    jobs._unpack(runner._packed(), place)
    assert (place / "state" / "file").read_text() == "made there"
    assert [path.name for path in place.iterdir()] == ["state"]
    del runner
    assert not scratch.exists()


@pytest.mark.parametrize(
    "words",
    [
        ["run", "quickstart"],
        ["resume", "whole", "--rounds", "4"],
        ["tune", "quickstart", "--grid", "training.lr=0.1", "--set", "population.validation=0.2"],
        ["papers", "run", "modfl-table1"],
    ],
    ids=lambda words: words[0],
)
def test_every_command_that_takes_a_cluster_takes_certificates(words, small_run, tmp_path, monkeypatch):
    def connected(*where: object) -> None:
        asked.append(where)
        raise SettingsError("nobody is there")

    asked: list[tuple[object, ...]] = []
    monkeypatch.setattr(members, "connected", connected)
    monkeypatch.chdir(tmp_path)
    if words[0] == "resume":
        small_run(out="whole")
    cluster = ["--scheduler", "tls://127.0.0.1:9", "--ca", "ca.pem", "--certificate", "own.pem"]
    call = partial(CliRunner().invoke, app)
    assert "TLS needs all of ca, certificate, key" in str(call([*words, *cluster]).exception)
    assert "nobody is there" in str(call([*words, *cluster, "--key", "own.key"]).exception)
    ((scheduler, tls),) = asked
    assert scheduler == "tls://127.0.0.1:9"
    assert [Path(path).name for path in vars(tls).values()] == ["ca.pem", "own.pem", "own.key"]
