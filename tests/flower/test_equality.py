"""The same settings give the same metrics, bit for bit, on `local` and on Flower."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr", reason="needs Flower: pip install 'intarsia[flower]'")

from intarsia.flower.superexec import HOST, free_port
from tests.flower.conftest import NORTH, SMALL, SOUTH, kill, locally, same

ADAPTED = {"adapters": "parallel", "model": {"name": "cnn", "channels": [4, 6], "hidden": 8}}
POOL = {
    "model": {"name": "module_pool", "layers": [1, 3, 2], "features": 12, "hidden": 10},
    "sharing": {"encoders_by": "device"},
}
METHODS = {
    "fedavg": {"method": "fedavg"},
    "modfl": {"method": "modfl", "sharing": {}},
    "fednova": {"method": "fednova"},
    "fedper": {"method": "fedper"},
    "modfl-found": {"method": "modfl", "sharing": {"cohorts": "found", "number": 2}, "rounds": 3},
    "sampled": {"method": "fedper", "sampling": {"clients": 3}, "rounds": 4},
    "slices": {"method": "fedavg", "merge": "slices"},
    "adapters": {"method": "fedavg", **ADAPTED},
    "adapters-fednova": {"method": "fednova", **ADAPTED},
    "clustered": {
        "method": "clustered_fl",
        "sharing": {"by": "device", "eps1": 10.0, "eps2": 0.1, "after": 2},
        "rounds": 4,
    },
    "pfedme": {"method": "pfedme", "sampling": {"clients": 3}, "rounds": 3},
    "per_fedavg": {"method": "per_fedavg"},
    "fedem": {"method": "fedem", "sampling": {"clients": 5}, "rounds": 3},
    "heterofl": {
        "method": {"name": "heterofl", "by": "lot", "widths": [1.0, 0.5, 0.25]},
        "sampling": {"clients": 5},
        "rounds": 3,
    },
    "flexifed": {"method": "flexifed", "sampling": {"clients": 5}, "rounds": 3},
    "pfedbayes": {"method": "pfedbayes", "sampling": {"clients": 5}, "rounds": 3},
    "robust": {
        "method": "modfl",
        "sharing": {},
        "merge": {"name": "trimmed", "mixing": True},
        "defence": {"norm": "auto", "far": 1.5, "leave_out": 2},
        "rounds": 3,
    },
    "int8": {"method": "fedper", "codec": "int8", "rounds": 3},
    "int8-down": {"method": "fedavg", "codec": {"name": "int8", "down": True}, "rounds": 3},
    "fedmn": {"method": {"name": "fedmn", "pretraining": 1}, **POOL, "rounds": 3},
    "fedmn-topk": {
        "method": {"name": "fedmn", "pretraining": 1},
        **POOL,
        "codec": {"name": "topk", "down": True},
        "rounds": 3,
    },
    "fedmn+": {"method": "fedmn+", **POOL, "sampling": {"clients": 3, "newcomers": 1}, "rounds": 3},
}
QUICK = ("fedavg",)


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.flower_slow) for name in METHODS]
)
def test_flower_gives_what_local_gives(federation, tmp_path, name):
    run = federation.play(name, METHODS[name])
    assert same(run, locally(tmp_path / "local", METHODS[name]))
    assert run.summary["failed"] == run.summary["refused"] == 0


def shades(path: Path) -> dict[str, Any]:
    """Write public images of the digits' size, each digit a shade of its own; return the population of them."""
    y = np.arange(40) % 10
    noise = np.random.default_rng(0).random((40, 1, 8, 8), dtype=np.float32)
    path.mkdir()
    np.savez(path / "shades.npz", x=0.5 * noise + y[:, None, None, None] / 20, y=y)
    return {"name": "files", "path": str(path)}


@pytest.mark.flower_slow
def test_pfedclub_gives_what_it_gives_locally(trial, tmp_path):
    """Models of two lengths; teachers travel to the sites, which keep them."""
    population = {"name": "digits", "clients": 8, "cohorts": 2, "generations": ["8x8"], "models": ["a", "b"]}
    changes = {
        "method": {"name": "pfedclub", "tailoring": {"epochs": 1}, "search": {"most": 2}},
        "sharing": {},
        "population": population,
        "models": {
            "a": {"name": "mlp", "hidden": [12]},
            "b": {"name": "club_cnn", "number": 2, "width": 0.2},
        },
        "public": shades(tmp_path / "public"),
        "sampling": {"clients": 5},
        "rounds": 4,
    }
    trial.join("north", NORTH, population=population)
    trial.join("south", SOUTH, population=population)
    run = trial.play("club", changes)
    alone = locally(tmp_path / "local", changes)
    assert same(run, alone)
    assert run.notes == alone.notes
    assert any(row["block"] == "teacher" for row in run.traffic)
    assert run.summary["failed"] == run.summary["refused"] == 0


def public_images(folder: Path) -> dict[str, Any]:
    """Write a file of images that are no client's; return the setting that makes them public."""
    random = np.random.default_rng(0)
    folder.mkdir()
    x = random.random((50, 1, 8, 8), dtype=np.float32)
    np.savez(folder / "images.npz", x=x, y=np.arange(50) % 10)
    return {"name": "files", "path": str(folder)}


DISTILLED = {
    "fedmd": {"name": "fedmd", "subset": 30, "digest_batch": 8, "pretraining": 1},
    "fccl": {"name": "fccl", "subset": 30, "digest_batch": 8, "pretraining": 1},
    "fedgh": "fedgh",
    "fedkemf": "fedkemf",
}


@pytest.mark.flower_slow
def test_public_data_of_the_server_reaches_the_sites(trial, tmp_path):
    """Methods for models of any kind: public data, scores and class means travel; headers are the server's."""
    population = {**SMALL["population"], "generations": ["8x8"]}
    trial.join("north", NORTH, population=population)
    trial.join("south", SOUTH, population=population)
    common = {
        "population": population,
        "public": public_images(tmp_path / "public"),
        "sharing": {},
        "sampling": {"clients": 5},
        "rounds": 3,
    }
    for name, method in DISTILLED.items():
        changes = {**common, "method": method}
        run = trial.play(name, changes)
        assert same(run, locally(tmp_path / name, changes)), name
        assert run.summary["failed"] == run.summary["refused"] == 0


def test_a_server_killed_between_training_and_checkpoint_loses_nothing(federation, tmp_path):
    """Law 1: the site keeps the state that the last checkpoint names, and the round is played again."""
    changes = {"method": "fedper", "rounds": 3}
    folder = federation.prepare("killed", changes)
    before = federation.log("site-north").count("round 2, ")
    federation.start_run("run-killed")
    federation.wait_for_line("site-north", "round 2, ", count=before + 2)  # train, evaluate
    kill(federation.server_app())
    federation.end("run-killed")
    assert [p.name for p in sorted((folder / "state").glob("checkpoint-*"))][-1] == "checkpoint-000001.json"
    run = federation.play_again("killed")
    assert "going on after round 1" in federation.log("run-killed-again")
    assert federation.log("site-north").count("round 2, ") == before + 4
    assert same(run, locally(tmp_path / "local", changes))


def ended_by_itself(federation) -> bool:
    """Start the unknown site's node; say whether it ended with an error (once in many times Flower's waits longer)."""
    federation.start_node("unknown", "--max-retries", "1")
    try:
        return federation.processes["node-unknown"].wait(timeout=45) != 0
    except subprocess.TimeoutExpired:
        return False
    finally:
        federation.end("node-unknown")


def test_a_node_with_an_unregistered_key_is_refused(federation):
    federation.write("unknown", ["client-00"])
    assert ended_by_itself(federation) or ended_by_itself(federation), federation.log("node-unknown")
    assert "Failed to activate SuperNode" in federation.log("node-unknown")
    assert "No SuperNode found with the given public key" in federation.log("link")


@pytest.mark.flower_slow
def test_flowers_own_supernode_works_too(trial, tmp_path):
    for site, clients in (("north", NORTH), ("south", SOUTH)):
        trial.write(site, clients)
        trial.start_site(site)
        trial.register(site)
        agent = trial.folder / f"{site}.state" / "agent.sock"
        certs = trial.folder / "certs"
        command = [
            *("flower-supernode", "--superlink", f"{HOST}:{trial.port}", "--port", str(free_port())),
            *("--root-certificates", str(certs / "ca.crt")),
            *("--auth-supernode-private-key", str(certs / "keys" / site)),
            *("--node-config", f'agent="{agent}"'),
        ]
        trial._start(f"node-{site}", command)
    run = trial.play("run", METHODS["fedper"])
    assert same(run, locally(tmp_path / "local", METHODS["fedper"]))
