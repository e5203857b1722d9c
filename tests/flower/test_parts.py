"""The parts of a federation on Flower, without its processes."""

from __future__ import annotations

import io
import json
import math
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import tomli_w
import torch

pytest.importorskip("flwr", reason="needs Flower: pip install 'intarsia[flower]'")

from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from typer.testing import CliRunner

import intarsia
from intarsia.blocks import Address, Block, Fold, Merge, Task
from intarsia.cli.app import app
from intarsia.clients import AT_SITE, state_version
from intarsia.core import (
    CheckpointError,
    ClientError,
    DataError,
    Refused,
    RunFolderError,
    SettingsError,
    WireError,
)
from intarsia.data import Population
from intarsia.data.public import digests
from intarsia.experiment import population_of
from intarsia.federation import Planner
from intarsia.flower import without_torch
from intarsia.flower.message_records import from_records, size_of, to_records
from intarsia.flower.message_schema import DONE, EXCHANGE, HERE, NEEDS, PROBLEM, WHO
from intarsia.flower.messages import SiteMessage
from intarsia.flower.operating import certs
from intarsia.flower.operating.app_folder import write_app
from intarsia.flower.operating.up import Plan
from intarsia.flower.server.app import Options, _build
from intarsia.flower.server.channel import Channel
from intarsia.flower.server.flower_engine import FlowerEngine
from intarsia.flower.server.public_keys import fingerprint, public_keys
from intarsia.flower.server.register import Register
from intarsia.flower.server.roster import Roster, SiteRecord, _Asked, _record
from intarsia.flower.site import relay
from intarsia.flower.site.agent import Agent
from intarsia.flower.site.agent_port import _handle, serve
from intarsia.flower.site.site_file import Site
from intarsia.flower.site.site_store import SiteStore, token
from intarsia.flower.superexec import QUIET
from intarsia.runs import ClientRecord, RunFolder, RunState, lock
from tests.flower.loopback import Loop

BLOCK = Block({"w": torch.arange(6.0).reshape(2, 3), "n": torch.tensor(3)}, frozenset({"n"}))


def test_a_message_comes_out_as_it_went_in():
    message = SiteMessage({"kind": "x", "numbers": [1, 2.5]}, {"a/b@all": BLOCK})
    for read in (
        SiteMessage.read(io.BytesIO(b"".join(message.frame())).read),
        from_records(to_records(message)),
    ):
        assert read.header == message.header
        assert read.blocks["a/b@all"].version == BLOCK.version
        assert read.blocks["a/b@all"].buffers == {"n"}


def test_the_relay_speaks_as_the_agent_does():
    frame = b"".join(SiteMessage({"kind": "x"}, {"b": BLOCK}).frame())
    content = relay.unframe(io.BytesIO(frame).read)
    assert from_records(content).blocks["b"].version == BLOCK.version
    assert b"".join(relay.frame(content)) == frame


@pytest.mark.parametrize(
    "damage", [lambda f: f[:-1], lambda f: b"x" + f[1:], lambda f: f[:20], lambda f: f[:16] + b"{" * 40]
)
def test_damaged_frames_are_refused(damage):
    frame = b"".join(SiteMessage({"kind": "x"}, {"b": BLOCK}).frame())
    with pytest.raises(WireError):
        SiteMessage.read(io.BytesIO(damage(frame)).read)


def test_records_that_are_not_ours_are_refused():
    good = to_records(SiteMessage({"kind": "x"}, {"b": BLOCK}))
    assert size_of(good) > BLOCK.nbytes
    array = Array("uint8", (3,), "numpy.ndarray", b"abc")
    for name, record in (
        ("b", ArrayRecord({"safetensors": array})),
        ("more", MetricRecord({"loss": 1.0})),
        ("more", ConfigRecord({"rows": "of data"})),
    ):
        content = RecordDict(dict(good.items()))
        content[name] = record
        with pytest.raises(WireError):
            from_records(content)


def test_another_protocol_is_refused():
    text = json.dumps({"kind": "x", "protocol": 0})
    with pytest.raises(WireError, match="different versions of Intarsia"):
        SiteMessage.of(text, {})


@pytest.mark.parametrize("module", ["site.node", "operating.link"])
def test_what_runs_beside_flower_imports_no_torch(module):
    """It is started at every site, and forks for every message; the relay is a part of it."""
    code = """
import atexit, runpy, sys
atexit.register(lambda: print(*sys.modules))
runpy.run_path(sys.argv[1])["main"](sys.argv[2], ["--help"])
"""
    done = subprocess.run(
        [sys.executable, "-c", code, without_torch.__file__, module],
        check=True,
        capture_output=True,
        text=True,
    )
    loaded = done.stdout.split()
    assert {f"intarsia.flower.{module}", "intarsia.flower.superexec"} <= set(loaded)
    assert "torch" not in loaded


def test_the_relay_imports_no_torch():
    code = f"import runpy, sys; runpy.run_path({relay.__file__!r}); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def task(state: dict[str, Any], version: str = BLOCK.version) -> Task:
    address = Address("w", "all")
    return Task("r", 1, "train", "train", "c", state_version(token(state)), versions={address: version})


def test_a_site_store_keeps_what_the_server_may_come_back_to(tmp_path):
    def own(i: int) -> dict[str, Any]:
        return {"private": {"head": store.blocks.put(Block({"w": torch.full((2,), float(i))}))}}

    store = SiteStore(tmp_path)
    states = [own(0)]
    store.remember(task({}), states[0], [])
    for i in range(1, 4):
        states.append(own(i))
        store.hold(task(states[i - 1]), {BLOCK.version: BLOCK})
        store.remember(task(states[i - 1]), states[i], [state_version(token(states[0]))])
        store.save()
    again = SiteStore(tmp_path)
    for kept in (0, 2, 3):
        assert again.state(task(states[kept])) == states[kept]
        again.blocks.get(states[kept]["private"]["head"])
    with pytest.raises(ClientError, match="is not in"):
        again.state(task(states[1]))
    with pytest.raises(CheckpointError):
        again.blocks.get(states[1]["private"]["head"])
    assert again.block(BLOCK.version).version == BLOCK.version
    assert again.block("0" * 32) is None
    assert again.state(task({})) == {}


def test_a_damaged_memory_is_named(tmp_path):
    (tmp_path / "site.json").write_text('{"states": ')
    with pytest.raises(CheckpointError, match=r"site\.json is damaged"):
        SiteStore(tmp_path)


def write_site(home: Path, **more: Any) -> Site:
    rows = ["a,b,label", *(f"{i},{i * i},{'ill' if i % 2 else 'well'}" for i in range(20))]
    (home / "data").mkdir(exist_ok=True)
    for name in ("ann", "bob"):
        (home / "data" / f"{name}.csv").write_text("\n".join(rows))
    lines = [
        'name = "north"',
        "workers = 1",
        'device = "cpu"',
        *(f"{k} = {json.dumps(v)}" for k, v in more.items()),
    ]
    (home / "site.toml").write_text("\n".join([*lines, "[population]", 'name = "files"', 'path = "data"']))
    return Site.load(home / "site.toml")


def test_a_site_file_names_clients_and_data(tmp_path):
    site = write_site(tmp_path, labels=["dead", "ill", "well"])
    population, places = site.load_population()
    assert list(population.clients) == ["ann", "bob"]
    assert places == {"ann": 0, "bob": 0}
    assert population.outputs == 3
    assert set(population.clients["ann"].data["train"].y.tolist()) == {1, 2}


def test_mistakes_in_a_site_file_are_named(tmp_path):
    with pytest.raises(SettingsError, match="worker: unknown setting; did you mean 'workers'"):
        write_site(tmp_path, worker=1)
    with pytest.raises(DataError, match="there is no client 'bab'; did you mean 'bob'"):
        write_site(tmp_path, clients=["bab"]).load_population()
    with pytest.raises(DataError, match="the data holds 'well', which is not in the list"):
        write_site(tmp_path, labels=["ill", "dead"]).load_population()
    wrong = write_site(tmp_path).model_copy(update={"attributes": {"ann": {"devise": "x"}}})
    with pytest.raises(DataError, match=r"attributes\.ann\.devise: no attribute; did you mean 'device'"):
        wrong.load_population()
    with pytest.raises(SettingsError, match="cannot read"):
        Site.load(tmp_path / "none.toml")


def test_attributes_come_from_the_site(tmp_path):
    site = write_site(tmp_path).model_copy(update={"attributes": {"ann": {"device": "gen1", "cohort": "x"}}})
    info = site.load_population()[0].clients["ann"].info
    assert (info.device, info.cohort) == ("gen1", "x")


def test_a_wrong_capacity_of_a_site_is_named(tmp_path):
    site = write_site(tmp_path).model_copy(update={"attributes": {"ann": {"capacity": "big"}}})
    with pytest.raises(DataError, match="client 'ann' has capacity 'big': write a number above 0"):
        site.load_population()


class Wire:
    """The server's side of one exchange, without Flower."""

    def __init__(self, agent: Agent, **changes: Any) -> None:
        self.agent = agent
        header = agent.answer(SiteMessage({"kind": WHO})).header
        roster = Roster(None, None, print)  # type: ignore[arg-type]
        roster.joining[header["site"]] = _record(header, "key")
        settings = intarsia.load({"rounds": 2, "model": {"name": "mlp", "hidden": [4]}, **changes})
        _, self.experiment = roster.admit(lambda population: _build(settings, population))
        self.engine = FlowerEngine(
            self.experiment.setup, self.experiment.settings, None, roster, 1.0, lambda client: ()
        )  # type: ignore[arg-type]
        self.planner = Planner(self.experiment.setup)
        self.state = RunState("run1", self.experiment.setup.initial_pool(), 1)

    def ask(
        self, with_setup: bool = True, with_blocks: bool = True, blocks: Any = None, **more: Any
    ) -> SiteMessage:
        setup = self.experiment.setup
        exchange = next(setup.method.round(self.planner.server(self.state)))
        plan = self.planner.plan(exchange, self.planner.weights(), self.planner.setup.addresses)
        jobs, content = self.planner.jobs(self.state, plan, exchange)
        header = {
            "kind": EXCHANGE,
            "run": "run1",
            "round": 1,
            "exchange": "train",
            "purpose": "train",
            "setup_id": self.engine.setup_id,
            "jobs": [self.engine._job(job) for job in jobs],
            "merge": False,
            "present": {},
            "planned": {},
            **({"setup": self.engine.description} if with_setup else {}),
            **more,
        }
        return self.agent.answer(SiteMessage(header, (content if with_blocks else {}) | (blocks or {})))


@pytest.fixture
def agent(tmp_path):
    agent = Agent(write_site(tmp_path), lambda text: None)
    yield agent
    agent.close()


def test_who_is_here_tells_no_data(agent):
    header = agent.answer(SiteMessage({"kind": WHO})).header
    assert header["kind"] == HERE
    assert set(header) == {"kind", "site", "version", "clients", "goals"}
    assert set(header["clients"][0]) == {
        *("name", "shape", "samples", "device", "cohort", "capacity", "model", "task", "place")
    }
    assert "well" not in json.dumps(header)


def test_a_repeated_task_gives_the_same_reply(agent, tmp_path):
    wire = Wire(agent, method="fedper")
    first = wire.ask()
    second = wire.ask()
    assert first.header["kind"] == DONE
    strip = lambda message: [{**r, "seconds": 0} for r in message.header["replies"]]  # noqa: E731
    assert sorted(strip(first), key=str) == sorted(strip(second), key=str)
    assert {n: b.version for n, b in first.blocks.items()} == {n: b.version for n, b in second.blocks.items()}
    assert all(set(r["state"]) == {AT_SITE} for r in first.header["replies"])
    restarted = Agent(agent.site, lambda text: None)
    third = Wire(restarted, method="fedper").ask(with_blocks=False)
    restarted.close()
    assert {n: b.version for n, b in first.blocks.items()} == {n: b.version for n, b in third.blocks.items()}


def test_a_site_says_what_it_lacks(agent):
    wire = Wire(agent)
    assert wire.ask(with_setup=False).header == {
        "kind": NEEDS,
        "site": "north",
        "setup": True,
        "blocks": [],
        "initial": [],
    }
    answer = wire.ask(with_blocks=False).header
    assert (answer["kind"], len(answer["blocks"])) == (NEEDS, 1)


def test_a_site_refuses_public_data_that_it_holds(agent):
    wire = Wire(agent, method="fedper")
    own = agent.population.clients["ann"].data["train"]
    wire.engine.description["public"] = digests(own)[:2]
    answer = wire.ask().header
    assert answer["kind"] == PROBLEM
    assert "of its samples are client 'ann''s too" in answer["message"]


def test_a_site_without_the_arithmetic_of_a_run_says_so_and_may_emulate_it(agent, monkeypatch):
    monkeypatch.setattr("intarsia.experiment.arithmetic.instructions", lambda device: "")
    wire = Wire(agent, training={"precision": "bf16"})  # the server computes nothing
    answer = wire.ask().header
    assert answer["kind"] == PROBLEM
    assert "AVX512-BF16" in answer["message"]
    assert "allow_slow = true in its file" in answer["message"]
    agent.site = agent.site.model_copy(update={"allow_slow": True})
    assert wire.ask().header["kind"] == DONE
    assert agent._site_runs["run1"].engine.setup.training.precision == "bf16"


def test_a_lost_state_is_named(agent):
    wire = Wire(agent, method="fedper")
    wire.state.clients["ann"] = ClientRecord(state={AT_SITE: "0" * 32})
    replies = {r["client"]: r for r in wire.ask().header["replies"]}
    assert "is not in" in replies["ann"]["failure"]["message"]
    assert replies["bob"]["failure"] is None


def test_what_goes_wrong_at_a_site_is_told_with_its_traceback(agent):
    answer = agent.answer(SiteMessage({"kind": EXCHANGE})).header
    assert answer["kind"] == PROBLEM
    assert "Traceback" in answer["details"]
    assert agent.answer(SiteMessage({"kind": "else"})).header["kind"] == PROBLEM


def test_a_site_asks_for_weights_that_it_cannot_make(agent):
    """The server's models may start from a file, or from another version of torch."""
    wire = Wire(agent, method="fedper")
    (key,) = wire.experiment.setup.templates
    initial = dict(wire.experiment.setup.templates[key].initial)
    initial["head"] = Block({name: tensor + 1 for name, tensor in initial["head"].tensors.items()})
    versions = {name: block.version for name, block in initial.items()}
    wire.engine.description["initial"] = {key: versions}
    assert wire.ask().header["initial"] == [versions["head"]]
    done = wire.ask(blocks={f"initial/{versions['head']}": initial["head"]})
    assert done.header["kind"] == DONE
    site_run = agent._site_runs["run1"]
    assert site_run.engine.setup.templates[key].initial["head"].version == versions["head"]
    site_run.store.save()
    assert SiteStore(site_run.store.folder).block(versions["head"]) is not None


def test_a_port_needs_the_token(tmp_path):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    site = write_site(tmp_path, listen=f"127.0.0.1:{port}")
    site.state.mkdir(mode=0o755)
    command = [sys.executable, "-m", "intarsia", "site", str(tmp_path / "site.toml")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert "training samples; at" in process.stdout.readline()
        assert site.state.stat().st_mode & 0o777 == 0o700
        assert ask_who(relay._connect(site.address, str(site.state / "token"))).header["kind"] == HERE
        (tmp_path / "wrong").write_text("0" * 64)
        with pytest.raises((WireError, ConnectionError)):
            ask_who(relay._connect(site.address, str(tmp_path / "wrong")))
    finally:
        process.terminate()
        process.wait()


def ask_who(connection: socket.socket) -> SiteMessage:
    with connection, connection.makefile("rb") as stream:
        connection.sendall(b"".join(SiteMessage({"kind": WHO}).frame()))
        return SiteMessage.read(stream.read)


def test_two_agents_do_not_share_a_folder(tmp_path):
    site = write_site(tmp_path)
    site.state.mkdir()
    with lock(site.state / "lock", "taken"), pytest.raises(RunFolderError, match="still running"):
        serve(site, lambda text: None)


def test_long_socket_paths_are_explained(tmp_path):
    site = write_site(tmp_path, folder="x" * 90)
    with pytest.raises(SettingsError, match="too long for a socket"):
        serve(site, lambda text: None)


def test_agents_listen_on_this_machine_only(tmp_path):
    with pytest.raises(SettingsError, match="serves this machine alone"):
        serve(write_site(tmp_path, listen="0.0.0.0:7000"), lambda text: None)


def site_record(name: str, clients: list[str], key: str = "k", outputs: int = 2) -> dict[str, Any]:
    info = {"shape": [2], "samples": {"train": 1, "test": 1}, "task": "", "place": 0}
    goals = {"": {"outputs": outputs, "problem": "classification", "labels": "x"}}
    entries = [{"name": client, **info} for client in clients]
    return {"kind": HERE, "site": name, "version": "1", "clients": entries, "goals": goals}


@pytest.mark.parametrize(
    ("header", "key", "message"),
    [
        (site_record("north", ["b"]), "other", "with another key already"),
        (site_record("north", ["b"]), "k", "other clients than before"),
        (site_record("south", ["a"]), "k2", "client 'a' of site 'south' is at site 'north' already"),
        (site_record("south", ["b"], outputs=3), "k2", r"the number of labels that they predict \(2 and 3\)"),
        (site_record("south", []), "k2", "clients: list should have at least 1 item"),
        ({"kind": HERE}, "k2", "site: field required"),
        ({"kind": "x"}, "k2", "a message of kind 'x' came"),
    ],
)
def test_sites_that_do_not_fit_are_refused(header, key, message):
    roster = Roster(None, None, print)  # type: ignore[arg-type]
    roster.joining["north"] = _record(site_record("north", ["a"]), "k")
    roster.admit(lambda population: population)
    with pytest.raises((DataError, WireError), match=message):
        roster._check(_record(header, key))


def test_the_same_reason_is_told_once():
    told: list[str] = []
    roster = Roster(None, None, told.append)  # type: ignore[arg-type]
    for header in ({"kind": "x"}, {"kind": "x"}, {"kind": "y"}):
        roster._take(_Asked(7, b"key", 0.0), SiteMessage(header), 0.0)
    assert [text.partition(" of kind ")[2][:3] for text in told] == ["'x'", "'y'"]


@pytest.mark.parametrize("sites", ["3", "50"])
def test_up_with_more_sites_than_clients_starts_nothing(sites, tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr("tempfile.tempdir", None)
    changes = [
        "--set",
        "population.clients=2",
        "--set",
        "population.cohorts=1",
        "--out",
        str(tmp_path / "run"),
    ]
    done = CliRunner().invoke(app, ["flower", "up", "--sites", sites, *changes])
    assert isinstance(done.exception, SettingsError)
    assert str(done.exception) == f"--sites {sites}: there are only 2 clients, and every site needs one"
    assert not list((tmp_path / "tmp").iterdir())
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("option", ["--root-certificates", "--auth-supernode-private-key", "--token"])
def test_a_node_names_a_file_that_is_not_there(option, tmp_path):
    command = [sys.executable, "-m", "intarsia", "flower", "node", "--agent", "a.sock", f"{option}=nowhere"]
    done = subprocess.run(
        [*command, "--superlink", "127.0.0.1:1"], capture_output=True, text=True, cwd=tmp_path, timeout=120
    )
    assert done.returncode == 2
    assert done.stderr == f"Error: {option}: there is no file nowhere\n"


def test_late_comers_stand_behind(tmp_path):
    roster = Roster(None, None, print)  # type: ignore[arg-type]
    for name, clients in (("north", ["m", "n"]), ("south", ["a", "z"])):
        roster.joining[name] = _record(site_record(name, clients), name)
        roster.admit(lambda population: population)
    roster.save(tmp_path)
    again = Roster(None, None, print)  # type: ignore[arg-type]
    again.load(tmp_path)
    assert again.order == ["m", "n", "a", "z"]
    assert isinstance(again.sites["north"], SiteRecord)


def test_keys_are_known_however_they_are_written(tmp_path):
    from cryptography.hazmat.primitives import serialization

    certs.make(tmp_path, ["a", "b"])
    one, other = public_keys(tmp_path / "keys")
    pem = serialization.load_ssh_public_key(one).public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    assert fingerprint(pem) == fingerprint(one)
    assert fingerprint(pem) != fingerprint(other)
    assert fingerprint(b"") is None
    assert (tmp_path / "keys" / "a").stat().st_mode & 0o077 == 0
    with pytest.raises(RunFolderError, match="holds certificates already"):
        certs.make(tmp_path, ["a"])
    (tmp_path / "list").write_text("no key\n")
    with pytest.raises(SettingsError, match="is no public key"):
        public_keys(tmp_path / "list")


def claims(**more: Any) -> dict[str, Any]:
    header = site_record("north", ["a"])
    header["clients"][0] |= more
    return header


@pytest.mark.parametrize(
    ("header", "message"),
    [
        (claims(samples={"train": 2, "test": 1}), "client 'a' of site 'north' had 1 train, 1 test samples"),
        (claims(cohort="other"), "cohort 'default' before, and now has .* cohort 'other'"),
        (site_record("north", ["a"], outputs=3), "predicts other labels than before"),
    ],
)
def test_a_site_comes_back_as_it_was(header, message):
    roster = Roster(None, None, print)  # type: ignore[arg-type]
    roster.joining["north"] = _record(site_record("north", ["a"]), "k")
    roster.admit(lambda population: population)
    roster._check(_record(site_record("north", ["a"]), "k"))
    with pytest.raises(DataError, match=message):
        roster._check(_record(header, "k"))


def test_claimed_samples_have_a_cap():
    roster = Roster(None, None, print, most=50)  # type: ignore[arg-type]
    roster._check(_record(claims(samples={"train": 50, "test": 1}), "k"))
    with pytest.raises(DataError, match="claims 51 training samples; at most 50 are believed"):
        roster._check(_record(claims(samples={"train": 51, "test": 1}), "k"))


def test_a_stored_lie_does_not_last(tmp_path):
    """What no site may say is not believed because it was written down: the honest site joins anew."""
    roster = Roster(None, None, print)  # type: ignore[arg-type]
    for name in ("north", "south"):
        roster.joining[name] = _record(site_record(name, [f"{name}-1"]), name)
    roster.admit(lambda population: population)
    roster.save(tmp_path)
    about = json.loads((tmp_path / "sites.json").read_text())
    about["sites"]["south"]["clients"][0]["samples"]["train"] = 10**400
    (tmp_path / "sites.json").write_text(json.dumps(about))
    said: list[str] = []
    again = Roster(None, None, said.append)  # type: ignore[arg-type]
    again.load(tmp_path)
    assert list(again.sites) == ["north"]
    assert again.order == ["north-1"]
    assert "site 'south' must join anew" in said[0]
    again.joining["south"] = _record(site_record("south", ["south-1"]), "south")
    names, population = again.admit(lambda population: population)
    assert (names, list(population.clients)) == (["south"], ["north-1", "south-1"])


def test_a_site_that_cannot_be_built_with_is_left_out():
    """The others decide which one that is; without anybody that fits, the reason is raised."""

    def build(population: Population) -> list[str]:
        shapes = {client.info.shape for client in population.clients.values()}
        if len(shapes) > 1:
            raise DataError("unlike shapes")
        return list(population.clients)

    said: list[str] = []
    roster = Roster(None, None, said.append)  # type: ignore[arg-type]
    for name, shape in (("a", [7]), ("b", [2]), ("c", [2])):
        header = site_record(name, [f"{name}-1"])
        header["clients"][0]["shape"] = shape
        roster.joining[name] = _record(header, name)
    assert roster.admit(build) == (["b", "c"], ["b-1", "c-1"])
    assert said == ["site 'a' is not used, it does not fit the others: unlike shapes"]
    empty = Roster(None, None, print)  # type: ignore[arg-type]
    empty.joining["b"] = roster.sites["b"]
    with pytest.raises(ZeroDivisionError):
        empty.admit(lambda population: 1 // 0)


def test_looking_up_clients_does_not_search(monkeypatch):
    """8,000 clients on 4 sites: a look-up touches one client's record, whatever there is beside it."""
    roster = Roster(None, None, print)  # type: ignore[arg-type]
    for name in ("a", "b", "c", "d"):
        roster.joining[name] = _record(site_record(name, [f"{name}-{i}" for i in range(2000)]), name)
    roster.admit(lambda population: population)
    touched = []
    told = type(roster.sites["a"].clients[0])
    honest = told.__getattribute__
    monkeypatch.setattr(told, "__getattribute__", lambda self, key: touched.append(key) or honest(self, key))
    assert [roster.site_of(f"{name}-1999").name for name in "abcd"] == list("abcd")
    assert len(touched) < 10


REGISTER = """
[sites.north]
key = "keys/a.pub"
[sites.north.clients.ann]
device = "gen1"
samples = 40
[sites.north.clients.bob]
[sites.south]
key = "keys/b.pub"
clients = ["cem"]
"""


@pytest.fixture
def register(tmp_path):
    certs.make(tmp_path, ["a", "b", "stranger"])
    (tmp_path / "roster.toml").write_text(REGISTER)
    return Register.load(tmp_path / "roster.toml")


def told(site: str, name: str, **more: Any) -> Any:
    header = site_record(site, [name])
    header["clients"][0] |= more
    return _record(header, "k").here


def test_the_register_says_whose_clients_are_whose(register, tmp_path):
    a, b, stranger = ((tmp_path / "keys" / f"{name}.pub").read_bytes() for name in ("a", "b", "stranger"))
    assert (register.site_of(a), register.site_of(b), register.site_of(stranger)) == ("north", "south", None)
    register.check(told("north", "ann", device="gen1"), a)
    register.check(told("north", "bob", device="any", cohort="any"), a)
    register.check(told("south", "cem"), b)
    for key, here, message in (
        (b, told("north", "ann", device="gen1"), "its key is that of site 'south' in the register"),
        (a, told("north", "cem"), "client 'cem' is not one of site 'north'"),
        (a, told("north", "ann", device="gen2"), "has device 'gen2', and 'gen1' in the register"),
        (a, told("north", "ann", device="gen1", samples={"train": 41, "test": 1}), "the register allows 40"),
    ):
        with pytest.raises(DataError, match=message):
            register.check(here, key)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (REGISTER.replace("b.pub", "a.pub"), "two sites have the same key"),
        (REGISTER.replace("b.pub", "none.pub"), "is no public key, nor the path of one"),
        (REGISTER.replace('"cem"', '"ann"'), "client 'ann' is at 'north' and at 'south'"),
        (REGISTER.replace("device", "devise"), "devise: unknown setting"),
        ("[sites", "not TOML"),
    ],
)
def test_mistakes_in_the_register_are_named(register, tmp_path, text, message):
    (tmp_path / "wrong.toml").write_text(text)
    with pytest.raises(SettingsError, match=message):
        Register.load(tmp_path / "wrong.toml")


def test_names_are_not_first_come_first_served(register, tmp_path, agent):
    """The stranger's node, and one that takes another's name, are not used; the owner is, though it comes last."""
    keys = {name: (tmp_path / "keys" / f"{name}.pub").read_bytes() for name in ("a", "b", "stranger")}
    loop = Loop()
    for name in ("stranger", "b", "a"):
        loop.add(agent, lambda asked: owned, keys[name])
    said: list[str] = []
    roster = Roster(Channel(loop), None, said.append, register)
    roster.refresh()
    assert {name: roster.node(name) for name in roster.joining} == {"north": 3}
    assert said[0] == "node 1 is not used: its key is not on the list"
    assert "node 2 is not used: its key is that of site 'south' in the register" in said[1]


def owned(answer: Any) -> None:
    answer.header["clients"][0]["device"] = "gen1"
    answer.header["clients"][0]["samples"]["train"] = 16


def test_up_writes_a_register(tmp_path):
    settings = intarsia.load({"population": {"name": "digits", "clients": 4}})
    plan = Plan(settings, population_of(settings), 2, tmp_path / "run")
    certs.make(tmp_path, plan.names)
    (tmp_path / "roster.toml").write_text(tomli_w.dumps(plan.roster(tmp_path / "keys")))
    register = Register.load(tmp_path / "roster.toml")
    assert register.site_of((tmp_path / "keys" / "site-1.pub").read_bytes()) == "site-1"
    assert list(register.sites["site-1"].clients) == plan.site(1)["clients"]


def connected(agent: Agent, send: bytes) -> None:
    """Send bytes to the agent's door, and say nothing more; the line stays open."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.sendall(send)
        _handle(agent, theirs, b"")


MAGIC = b"intarsia"
INDEX = json.dumps({"header": "{}", "records": {"a": 10**30}}).encode()


@pytest.mark.parametrize(
    "send",
    [
        b"",
        MAGIC,
        MAGIC + (5).to_bytes(8, "little"),
        MAGIC + (2**63).to_bytes(8, "little"),
        MAGIC + len(INDEX).to_bytes(8, "little") + INDEX,
        MAGIC + len(INDEX).to_bytes(8, "little") + INDEX.replace(str(10**30).encode(), b"-1"),
        MAGIC + len(INDEX).to_bytes(8, "little") + INDEX.replace(str(10**30).encode(), b'"7"'),
        MAGIC + len(INDEX).to_bytes(8, "little") + INDEX.replace(str(10**30).encode(), str(2**32).encode()),
    ],
)
def test_silent_connections_and_bad_lengths_do_not_hold_the_agent(agent, monkeypatch, send):
    monkeypatch.setattr("intarsia.flower.site.agent_port.SILENCE", 0.05)
    said: list[str] = []
    agent.log = said.append
    connected(agent, send)
    assert said[0].startswith("a message was refused: ")
    ours, theirs = socket.socketpair()
    with ours, theirs, ours.makefile("rb") as stream:
        ours.sendall(b"".join(SiteMessage({"kind": WHO}).frame()))
        _handle(agent, theirs, b"")
        theirs.shutdown(socket.SHUT_WR)
        assert SiteMessage.read(stream.read).header["kind"] == HERE


def test_a_message_larger_than_the_site_allows_is_refused(agent):
    agent.site = agent.site.model_copy(update={"largest": 1 << 20})
    said: list[str] = []
    agent.log = said.append
    connected(
        agent, b"".join(SiteMessage({"kind": WHO}, {"b": Block({"w": torch.zeros(1 << 19)})}).frame())[:4096]
    )
    assert "1048576 are possible" in said[0]


def test_a_bad_setup_leaves_the_good_one_in_place(agent):
    wire = Wire(agent)
    assert wire.ask().header["kind"] == DONE
    site_run = agent._site_runs["run1"]
    wrong = {**wire.engine.description, "settings": "rounds = ["}
    assert wire.ask(setup=wrong, setup_id="x").header["kind"] == PROBLEM
    assert agent._site_runs["run1"] is site_run
    assert wire.ask(with_setup=False).header["kind"] == DONE


def sums(values: list[list[float]], samples: list[int]) -> tuple[Fold, dict[str, object], Block]:
    address, present = Address("m", "all"), Block({"w": torch.zeros(3)})
    made = Fold(Merge(), {address: present}, {address: 10})
    for value, count in zip(values, samples, strict=True):
        made.add(
            {address: Block({"w": torch.tensor(value, dtype=torch.float32)})},
            {address: present.layout},
            count,
            {},
        )
    return Fold(Merge(), {address: present}, {address: 10}), *made.dump()


def test_sums_that_are_right_are_taken():
    fold, header, tensors = sums([[1, 2, 3], [3, 2, 1]], [5, 5])
    fold.check_sums(header, tensors, {Address("m", "all"): [(5, {}), (5, {})]})
    fold.absorb(header, tensors)
    assert fold.finish()[Address("m", "all")].tensors["w"].tolist() == [2, 2, 2]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda h, t: ({}, t), "differ in m@all"),
        (lambda h, t: ({"m@all": {"samples": 9, "scalars": []}}, t), "stand for 9 samples"),
        (lambda h, t: ({"m@all": {"samples": 10, "scalars": [float("nan")]}}, t), "other scalars"),
        (lambda h, t: (h, Block({})), "differ in m@all/w"),
        (lambda h, t: (h, Block({"m@all/w": torch.zeros(4, dtype=torch.int64)})), "came as"),
        (lambda h, t: (h, Block({"m@all/w": torch.zeros(3)})), "came as"),
        (
            lambda h, t: (h, Block({"m@all/w": torch.full((3,), -(2.0**63)).double()})),
            "larger than any update",
        ),
        (lambda h, t: (h, Block({"m@all/w": torch.full((3,), math.nan).double()})), "larger than any update"),
    ],
)
def test_sums_that_cannot_be_right_are_refused(wrong, message):
    fold, header, tensors = sums([[1, 2, 3], [3, 2, 1]], [5, 5])
    with pytest.raises(Refused, match=message):
        fold.check_sums(*wrong(header, tensors), {Address("m", "all"): [(5, {}), (5, {})]})


def test_unknown_options_of_the_app_are_named():
    with pytest.raises(
        SettingsError, match=r"run config\.deadlines: unknown setting; did you mean 'deadline'"
    ):
        Options.read({"deadlines": 3})
    with pytest.raises(SettingsError, match=r"run config\.sites: .*'many'"):
        Options.read({"sites": "many"})
    assert Options.read({"deadline": 3, "sites": 2}) == Options(deadline=3.0, sites=2)


def test_paths_mean_the_same_for_every_process(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    population = {"name": "joint", "members": {"a": {"name": "files", "path": "x"}}}
    settings = intarsia.load({"population": population, "weights": "w.safetensors"})
    plan = Plan(settings, Population({}, 2), 1, tmp_path / "run")
    assert plan.site(0)["population"]["members"]["a"]["path"] == str(tmp_path / "x")
    assert plan.settings.weights == str(tmp_path / "w.safetensors")


def test_only_the_app_itself_goes_to_the_sites(tmp_path):
    import zipfile

    from flwr.cli.build import build_fab_from_disk

    write_app(tmp_path / "app", "rounds = 1\n", {"folder": "runs/x"})
    (tmp_path / "app" / "north.toml").write_text('name = "north"')
    (tmp_path / "app" / "runs").mkdir()
    (tmp_path / "app" / "runs" / "metrics.jsonl").write_text("{}")
    with zipfile.ZipFile(io.BytesIO(build_fab_from_disk(tmp_path / "app"))) as bundle:
        names = {name for name in bundle.namelist() if not name.startswith(".info")}
    own = {f"intarsia_app/{name}.py" for name in ("__init__", "client_app", "server_app")}
    assert names == {"pyproject.toml", "settings.toml", *own}


def test_a_written_app_is_whole(tmp_path):
    result = CliRunner().invoke(app, ["flower", "init", str(tmp_path / "app"), "--recipe", "quickstart"])
    assert result.exit_code == 0, result.output
    settings = (tmp_path / "app" / "settings.toml").read_text()
    assert "[population]" not in settings
    assert intarsia.load(tmp_path / "app" / "settings.toml").method["name"] == "fedper"
    text = (tmp_path / "app" / "README.md").read_text()
    assert all(f"export {key}={value}" in text for key, value in QUIET.items())
    assert (tmp_path / "app" / "intarsia_app" / "client_app.py").read_text() == Path(
        relay.__file__
    ).read_text()
    with pytest.raises(RunFolderError, match="is not empty"):
        write_app(tmp_path / "app", "", {"folder": "x"})


def test_a_state_that_lies_at_a_site_is_not_taken_for_none(small_run):
    """A run of a federation, opened where its clients' own blocks are not."""
    run = small_run("method=fedper")
    state = run.state()
    state.clients["client-00"] = ClientRecord(state={AT_SITE: "0" * 32})
    RunFolder.reopen(run.path).rewrite(state)
    with pytest.raises(ClientError, match="the own blocks of client 'client-00' lie at its site"):
        run.client("client-00").model()
