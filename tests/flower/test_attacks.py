"""A federation under attack, with real processes: no foreign code runs, nobody but the operator is in control."""

from __future__ import annotations

import json
import re
import shutil
import ssl
import urllib.request
from pathlib import Path

import pytest
from typer.testing import CliRunner

pytest.importorskip("flwr", reason="needs Flower: pip install 'intarsia[flower]'")

from flwr.common.constant import SUPERLINK_NODE_ID

import intarsia
from intarsia.cli.app import app
from intarsia.core import SettingsError
from intarsia.flower.operating.proxy import FLEET, configuration
from intarsia.flower.superexec import HOST, free_port
from tests.flower.conftest import NORTH, SOUTH, Trial, locally, same
from tests.flower.stranger import Stranger, forge, listening, nginx

needs_nginx = pytest.mark.skipif(
    shutil.which("nginx") is None, reason="needs nginx: apt-get install nginx-light"
)
CHANGES = {"method": "fedavg", "rounds": 2}
ACQUIRE = "/v1/runtime/acquire-task"
SECRET = re.compile(r"--token\b|\b[0-9a-f]{32,}\b")


@pytest.fixture
def stranger(federation, tmp_path) -> Stranger:
    return Stranger(tmp_path, federation)


def put_into(app: Path, code: str) -> None:
    """Add code to both components of an app."""
    for name in ("server_app", "client_app"):
        module = app / "intarsia_app" / f"{name}.py"
        module.write_text(f"{module.read_text()}\n{code}")


def test_no_foreign_code_runs_and_the_metrics_stay(federation, stranger, tmp_path):
    """A stranger submits an app of its own; the SuperLink itself sends foreign code; a node writes as the server."""
    refused = [
        stranger.flwr("run", str(stranger.write_app()), "target"),
        stranger.flwr("ls", "target"),
        stranger.flwr("supernode", "register", str(federation.folder / "certs/keys/stranger.pub"), "target"),
    ]
    assert all(done.returncode != 0 for done in refused), [done.stdout for done in refused]
    folder = federation.prepare("attacked", CHANGES)
    put_into(federation.folder / "federation", stranger.evil)
    federation.register("stranger")
    federation.start_run("run-attacked")
    federation.wait_for_line("link", "Started task")
    assert forge(federation, "stranger", *numbers(federation)) == 403
    seen = commands_until_end(federation, "run-attacked")
    assert not stranger.marks.exists(), [mark.read_text() for mark in stranger.marks.iterdir()]
    assert same(intarsia.open_run(folder), locally(tmp_path / "local", CHANGES))
    assert "start-run" in federation.log("link")
    assert any("app_process.py" in command for command in seen)
    assert not [command for command in seen if SECRET.search(command)]


def numbers(federation: Trial) -> tuple[int, int, int]:
    """Return the numbers of the run, of the server and of a site's node: what it takes to write as the server."""
    (run,) = re.findall(r"Created run (\d+)", federation.log("link"))
    (north,) = re.findall(r"SuperNode ID: (\d+)", federation.log("node-north"))
    return int(run), SUPERLINK_NODE_ID, int(north)


def commands_until_end(federation: Trial, run: str) -> set[str]:
    """Wait for a run; return the command of every process that was seen meanwhile, as `ps` shows them to everybody."""
    seen: set[str] = set()
    while federation.processes[run].poll() is None:
        seen |= set(federation.everything().values())
    federation.wait(run, 60)
    return seen


def test_the_link_hands_its_tasks_to_no_other_superexec(federation, stranger):
    where = (f"{HOST}:{federation.port}", "--root-certificates", str(stranger.folder / "ca.crt"))
    assert stranger.ask("POST", ACQUIRE) == 401
    stranger.superexec(*where).communicate(timeout=60)  # it ends; one that is let in would ask on


def test_a_node_hands_a_sites_messages_to_no_other_process(federation, stranger):
    ports = listening(federation.processes["node-north"].pid)
    assert ports
    for port in ports:
        assert stranger.ask("POST", ACQUIRE, plain=port) == 401
        stranger.superexec(f"{HOST}:{port}", "--insecure").communicate(timeout=60)


def test_the_operators_token_is_the_operators_alone(federation):
    home = federation.folder / "flwr"
    assert (home / "credentials.yaml").stat().st_mode & 0o777 == 0o600
    assert listening(federation.processes["link"].pid) == [federation.port]


def test_the_link_stays_on_this_machine(tmp_path):
    for name in ("ca.crt", "server.pem", "server.key"):
        (tmp_path / name).touch()
    command = ["flower", "link", "--certs", str(tmp_path), "--host", "0.0.0.0"]
    with pytest.raises(SettingsError, match="intarsia flower proxy"):
        CliRunner().invoke(app, command, catch_exceptions=False)


def test_a_second_link_does_not_take_the_first_ones_token(federation, monkeypatch):
    monkeypatch.setenv("FLWR_HOME", federation.environment["FLWR_HOME"])
    before = (federation.folder / "flwr" / "credentials.yaml").read_bytes()
    where = ["--certs", str(federation.folder / "certs"), "--port", str(federation.port)]
    with pytest.raises(SettingsError, match="is in use"):
        CliRunner().invoke(app, ["flower", "link", *where], catch_exceptions=False)
    assert (federation.folder / "flwr" / "credentials.yaml").read_bytes() == before


def routes(trial: Trial) -> list[tuple[str, str]]:
    """Return everything that the SuperLink serves, as it says itself."""
    context = ssl.create_default_context(cafile=str(trial.folder / "certs" / "ca.crt"))
    address = f"https://{HOST}:{trial.port}/openapi.json"
    with urllib.request.urlopen(address, context=context) as answer:
        paths = json.load(answer)["paths"]
    listed = [(method.upper(), path) for path, methods in paths.items() for method in methods]
    return [*listed, ("GET", "/docs"), ("GET", "/openapi.json"), ("GET", "/")]


TRICKS = [
    "/v1/fleet/../control/start-run",
    "/v1/fleet/%2e%2e/control/start-run",
    "/v1/fleet/pull-messages/../../control/start-run",
    "/v1/fleet/pull-messages%2f..%2f..%2fcontrol/start-run",
    "/v1/control/start-run?/v1/fleet/pull-messages",
    "/v1/control/start-run;/v1/fleet/pull-messages",
    "//v1/control/start-run",
    "/v1/fleet//pull-messages/",
    "/V1/control/start-run",
]


@needs_nginx
def test_nginx_lets_through_what_nodes_need_and_nothing_else(federation, tmp_path):
    port = free_port()
    behind = Stranger(tmp_path, federation, port)
    written = configuration(federation.folder / "certs", f"{HOST}:{port}", f"{HOST}:{federation.port}")
    with nginx(tmp_path, written, port):
        known = routes(federation)
        open_ones = {("POST", f"/v1/fleet/{call}") for call in FLEET}
        assert open_ones < set(known)
        assert {behind.ask(*route) for route in open_ones} == {401}  # the SuperLink's: there is no signature
        assert {behind.ask(*route) for route in set(known) - open_ones} == {403}
        assert {behind.ask("GET", path) for _, path in open_ones} == {403}
        assert {path: behind.ask("POST", path) for path in TRICKS} == dict.fromkeys(TRICKS, 403)
        shutil.copy(federation.folder / "flwr" / "credentials.yaml", tmp_path / "flwr")
        assert behind.flwr("ls", "target").returncode != 0


@needs_nginx
@pytest.mark.flower_slow
def test_a_federation_behind_nginx_gives_what_local_gives(trial, tmp_path):
    port = free_port()
    written = configuration(trial.folder / "certs", f"{HOST}:{port}", f"{HOST}:{trial.port}")
    with nginx(tmp_path, written, port):
        for site, clients in (("north", NORTH), ("south", SOUTH)):
            trial.write(site, clients)
            trial.start_site(site)
            trial.register(site)
            trial.start_node(site, port=port)
        changes = {"method": "fedper", "rounds": 2, "model": {"name": "mlp", "hidden": [3000, 3000]}}
        run = trial.play("run", changes)
        assert same(run, locally(tmp_path / "local", changes))
        assert run.summary["failed"] == run.summary["refused"] == 0
