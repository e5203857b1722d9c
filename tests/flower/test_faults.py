"""Faults of a federation, each with real processes: the round goes on, nothing is lost, nothing merged twice."""

from __future__ import annotations

import json
import os
import signal
import time
from collections import Counter
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="needs Flower: pip install 'intarsia[flower]'")

import intarsia
from intarsia.blocks import BlockStore
from intarsia.flower.superexec import HOST, free_port
from intarsia.runs import RunFolder
from tests.conftest import failures
from tests.flower.conftest import NORTH, SOUTH, kill, locally, same, wait_until

pytestmark = pytest.mark.flower_slow

ESCAPES = (b"\x1b[2J", b"\x1b]0;", b"\x07")
SLOW = {"training": {"lr": 0.01, "batch_size": 1, "epochs": 20}}


def trained(run: intarsia.Run, round: int) -> set[str]:
    return {m["client"] for m in run.metrics if m["round"] == round and m["split"] == "train"}


def last_round(folder: Path) -> int:
    return max((int(p.stem.split("-")[1]) for p in (folder / "state").glob("checkpoint-*.json")), default=-1)


def states(folder: Path) -> dict[str, dict[str, str]]:
    """Return the client states that the last checkpoint names."""
    return {name: dict(record.state) for name, record in RunFolder(folder).state_at().clients.items()}


def private_blocks(site: Path) -> dict[str, set[str]]:
    """Return the own blocks that a site keeps for each client, every one read and checked."""
    (folder,) = (site / "runs").iterdir()
    store = BlockStore(folder / "blocks")
    kept = json.loads((folder / "site.json").read_bytes())["states"]
    return {
        client: {store.get(v).version for state in own.values() for v in state.get("private", {}).values()}
        for client, own in kept.items()
    }


def merged_once(run: intarsia.Run) -> bool:
    """Return whether no client trained twice in a round that counts."""
    rows = Counter((m["round"], m["client"]) for m in run.metrics if m["split"] == "train")
    return max(rows.values()) == 1


def test_a_node_killed_in_mid_round_comes_back_with_its_blocks(trial):
    trial.join("north", NORTH)
    trial.join("south", SOUTH)
    folder = trial.prepare("run", {"method": "fedper", "rounds": 40, **SLOW}, deadline=12.0)
    trial.start_run("run")
    trial.wait_for_line("site-north", "round 2, train")
    trial.end("node-north", signal.SIGKILL)
    wait_until(lambda: last_round(folder) >= 2, 60)
    kept = private_blocks(trial.folder / "north.state")
    assert kept.keys() == set(NORTH)
    back = come_back(trial, "north")
    wait_until(lambda: trained(intarsia.open_run(folder), last_round(folder)) == {*NORTH, *SOUTH}, 120)
    trial.end("run")
    kill(trial.server_app())
    run = intarsia.open_run(folder)
    assert trained(run, 1) == {*NORTH, *SOUTH}
    assert trained(run, 2) == set(SOUTH)
    events = [e for e in failures(run) if e["round"] == 2 and e["exchange"] == "train"]
    assert {e["client"] for e in events} == set(NORTH)
    assert all("site 'north'" in e["message"] for e in events)
    assert not [e for e in failures(run) if "builds on state" in e["message"]]
    assert set(states(folder)) == {*NORTH, *SOUTH}
    assert merged_once(run)
    assert back > 1


def come_back(trial, site: str) -> int:
    """Start a node until the SuperLink takes it again (not before its heartbeat has lapsed); count the tries."""
    for attempt in range(1, 40):
        before = trial.log(f"node-{site}").count("SuperNode ID")
        trial.start_node(site, "--max-retries", "1")
        process = trial.processes[f"node-{site}"]
        while process.poll() is None:
            if trial.log(f"node-{site}").count("SuperNode ID") > before:
                return attempt
            time.sleep(0.1)
        trial.end(f"node-{site}")
        time.sleep(3)
    raise TimeoutError("the node was not taken again")


def test_a_slow_site_is_left_out_and_taken_later(trial):
    trial.join("north", NORTH)
    trial.join("south", SOUTH)
    folder = trial.prepare("run", {"method": "fedper", "rounds": 6}, deadline=15.0)
    trial.start_run("run")
    trial.wait_for_line("site-south", "round 2, train")
    agents = [pid for pid, command in trial.everything().items() if command.strip().endswith("south.toml")]
    for pid in agents:
        os.kill(pid, signal.SIGSTOP)
    # It may have answered the training of round 2 already: round 3 it surely misses.
    wait_until(lambda: last_round(folder) >= 3, 150)
    for pid in agents:
        os.kill(pid, signal.SIGCONT)
    trial.wait("run", 300)
    run = intarsia.open_run(folder)
    left_out = [r for r in range(1, 7) if trained(run, r) == set(NORTH)]
    assert left_out
    assert trained(run, 6) == {*NORTH, *SOUTH}
    late = [e for e in failures(run) if e["round"] in left_out and e["exchange"] == "train"]
    assert {e["client"] for e in late} == set(SOUTH)
    assert any("did not answer within 15 s" in e["message"] for e in late)
    assert merged_once(run)


def test_a_plain_text_client_is_refused(trial):
    link = ("--superlink", f"{HOST}:{trial.port}", "--port", str(free_port()))
    trial._start("plain", ["flower-supernode", "--insecure", *link, "--max-retries", "2"])
    code = trial.processes["plain"].wait(timeout=60)
    trial.end("plain")
    assert code != 0
    assert "Failed to initialize the connection to the SuperLink" in trial.log("plain")
    assert "SuperNode ID" not in trial.log("plain")
    assert "Activated" not in trial.log("link")


def test_a_registered_node_that_is_not_on_the_list_is_not_used(federation, tmp_path):
    """Flower lets whoever reaches its port register a key: our own list decides who takes part."""
    allowed = tmp_path / "allowed"
    allowed.mkdir()
    for site in ("north", "south"):
        key = federation.folder / "certs" / "keys" / f"{site}.pub"
        (allowed / key.name).write_bytes(key.read_bytes())
    federation.write("unlisted", ["client-00"])
    federation.start_site("unlisted")
    federation.register("unlisted")
    federation.start_node("unlisted")
    federation.wait_for_line("node-unlisted", "SuperNode ID")
    try:
        run = federation.play("listed", {"method": "fedavg"}, keys=str(allowed))
        assert "is not used: its key is not on the list" in federation.log("run-listed")
        assert federation.log("site-unlisted").count("round") == 0
        assert same(run, locally(tmp_path / "local", {"method": "fedavg"}))
    finally:
        federation.end("node-unlisted")
        federation.end("site-unlisted")


def test_lies_are_refused_by_name(trial):
    trial.join("north", NORTH, **ONE_DEVICE)
    for site, clients in (("south", ["client-01"]), ("east", ["client-02", "client-05", "client-06"])):
        trial.start_other(site, clients, "tests.flower.liar", **ONE_DEVICE)
    run = trial.play("run", {"method": "fedavg", "sharing": {}, "rounds": 5, **ONE_DEVICE}, sites=3)
    said = {
        (e["round"], e["client"]): (e["kind"], e["message"])
        for e in failures(run)
        if e["exchange"] == "train"
    }
    expected = {
        1: ("site 'south', client 'client-01', block 'model': got", "site 'east': the sums 'model@all/"),
        2: ("site 'south', client 'client-01', block 'model': tensor", "site 'east': the sums 'model@all/"),
        3: ("site 'south': it sent", "site 'east': it sent"),
        4: (None, "site 'east': the sums of model@all stand for"),
    }
    for round, (single, sums) in expected.items():
        for client, text in (("client-01", single), ("client-02", sums), ("client-06", sums)):
            if text is not None:
                kind, message = said[round, client]
                assert kind == "refused"
                assert text in message, message
        assert trained(run, round) == {*NORTH, *(["client-01"] if single is None else [])}
    assert "holds a NaN" in said[2, "client-01"][1]
    assert "more than" in said[3, "client-01"][1]
    assert trained(run, 5) == {*NORTH, *SOUTH}
    in_evaluation = {
        e["round"]: e["message"]
        for e in failures(run)
        if (e["exchange"], e["client"]) == ("evaluate", "client-01")
    }
    expected = ("no value 'scores'", "n = a whole number of 1329 bits", "replies.0.seconds", "is no address")
    assert in_evaluation.keys() == {1, 2, 3, 4}
    assert all(text in in_evaluation[round] for round, text in enumerate(expected, 1)), in_evaluation
    assert {e["kind"] for e in failures(run)} == {"refused"}
    assert run.summary["finished"]
    last = {r["client"] for r in run.metrics if r["round"] == 5 and r["split"] == "test"}
    assert last == {*NORTH, *SOUTH}


ONE_DEVICE = {"population": {"name": "digits", "clients": 8, "cohorts": 2, "generations": ["8x8"]}}


def test_a_restarted_superlink_loses_nothing(trial, tmp_path):
    trial.end("link")
    trial.start_link(database=True)
    trial.join("north", NORTH)
    trial.join("south", SOUTH)
    changes = {"method": "fedper", "rounds": 3}
    trial.prepare("run", changes)
    trial.start_run("run-run")
    trial.wait_for_line("site-north", "round 2, train")
    trial.end("link", signal.SIGKILL)
    trial.end("run-run")
    trial.start_link(database=True)
    run = trial.play_again("run")
    assert same(run, locally(tmp_path / "local", changes))
    assert merged_once(run)


def test_a_site_and_its_node_restarted_between_rounds(trial, tmp_path):
    """The agent's memory is its folder."""
    trial.join("north", NORTH)
    trial.join("south", SOUTH)
    changes = {"method": "fedper", "rounds": 4}
    trial.prepare("run", changes)
    trial.start_run("run-run")
    trial.wait_for_line("site-north", "round 1, evaluate")
    trial.wait_for_line("site-south", "round 1, evaluate")
    kill(trial.server_app())
    trial.end("run-run")
    trial.end("site-north", signal.SIGKILL)
    trial.start_site("north")
    run = trial.play_again("run")
    assert same(run, locally(tmp_path / "local", changes))


def test_when_every_site_is_lost_the_run_stops_and_goes_on(trial):
    trial.join("north", NORTH)
    trial.join("south", SOUTH)
    trial.prepare("run", {"method": "fedper", "rounds": 4})
    trial.start_run("run-run")
    trial.wait_for_line("site-north", "round 1, evaluate")
    for site in ("north", "south"):
        trial.end(f"site-{site}", signal.SIGKILL)
    trial.processes["run-run"].wait(timeout=180)
    trial.end("run-run")
    said = trial.log("run-run")
    assert "the site agent does not answer" in said
    assert "is saved: the same flwr run goes on with it" in said
    for site in ("north", "south"):
        trial.start_site(site)
    run = trial.play_again("run")
    assert trained(run, 4) == {*NORTH, *SOUTH}
    assert not [e for e in failures(run) if "builds on state" in e["message"]]
    assert merged_once(run)


def test_a_site_joins_late(trial):
    trial.join("north", NORTH)
    folder = trial.prepare("run", {"method": "fedper", "rounds": 60, **SLOW}, sites=1)
    trial.start_run("run")
    trial.wait_for_line("site-north", "round 2, train")
    trial.join("south", SOUTH)
    wait_until(lambda: trained(intarsia.open_run(folder), last_round(folder)) == {*NORTH, *SOUTH}, 120)
    done = last_round(folder)
    kill(trial.server_app())
    trial.end("run")
    run = intarsia.open_run(folder)
    assert trained(run, 1) == set(NORTH)
    assert merged_once(run)
    assert not failures(run)
    # Going on knows both sites.
    trial.start_run("again")
    trial.wait_for_line("site-south", f"round {done + 2}, train", seconds=120)
    kill(trial.server_app())
    trial.end("again")
    assert trained(intarsia.open_run(folder), last_round(folder)) == {*NORTH, *SOUTH}


def test_a_failing_client_reaches_the_operator(trial):
    """The client's name and traceback are on the operator's screen, and the round goes on."""
    trial.join("north", NORTH)
    trial.start_other("south", SOUTH, "tests.flower.broken")
    alone = {"training": {"lr": 0.1, "batch_size": 16, "batched": False}}
    run = trial.play("run", {"method": "fedavg", **alone})
    said = trial.log("run-run")
    assert "client 'client-01', round 1, exchange 'train', stage 'train': ZeroDivisionError" in said
    assert "Traceback (most recent call last)" in said
    assert "raise ZeroDivisionError(" in said
    raw = (trial.folder / "logs" / "run-run.log").read_bytes()
    assert raw.count(b"\\x1b[2J\\x1b]0;owned\\x07") > 1
    assert not [code for code in ESCAPES if code in raw]
    assert not [line for line in raw.splitlines() if line.startswith(b"[intarsia] owned")]
    assert all(set(e["message"]).isdisjoint("\x1b\x07") for e in failures(run))
    assert trained(run, 2) == {*NORTH, *SOUTH} - {"client-01"}
    assert run.summary["failed"] == 2


def test_blocks_of_400_megabytes_go_through(trial):
    population = {"name": "digits", "clients": 1, "generations": ["8x8"]}
    trial.write_site("north", {"population": population, "workers": 1, "device": "cpu"})
    trial.start_site("north")
    trial.register("north")
    trial.start_node("north")
    changes = {
        "method": "fedavg",
        "sharing": {},
        "rounds": 1,
        "population": population,
        "model": {"name": "mlp", "hidden": [10000, 10000]},
        "training": {"lr": 0.001, "batch_size": 1000},
    }
    folder = trial.prepare("run", changes, sites=1, deadline=900.0)
    trial.start_run("run")
    trial.wait("run", 900)
    run = intarsia.open_run(folder)
    assert run.summary["failed"] == run.summary["refused"] == 0
    assert run.summary["bytes"]["up"] > 400_000_000
