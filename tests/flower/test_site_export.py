"""A site exports its clients' own models from its own folder: nothing is asked of anybody."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

pytest.importorskip("flwr", reason="needs Flower: pip install 'intarsia[flower]'")

from intarsia.cli.app import app
from intarsia.core import CheckpointError, RunFolderError
from intarsia.flower.site.site_file import Site
from intarsia.flower.site.site_models import SiteModels
from intarsia.flower.site.site_store import SiteStore
from tests.flower.loopback import Loop, make_agent, play

SMALL = {"rounds": 2, "model": {"name": "mlp", "hidden": [8]}, "training": {"batch_size": 8, "lr": 0.1}}
POOL = {
    "method": {"name": "fedmn", "pretraining": 1},
    "model": {"name": "module_pool", "layers": [1, 3, 2], "features": 12, "hidden": 10},
}
METHODS = {
    "fedavg": {"method": "fedavg"},
    "fedper": {"method": "fedper"},
    "fedavg_plus": {"method": "fedavg+"},
    "pfedme": {"method": "pfedme"},
    "fedem": {"method": "fedem"},
    "fedmn": POOL,
    "int8": {"method": "fedper", "codec": {"name": "int8", "down": True}},
    "seldom": {"method": "fedper", "rounds": 3, "evaluation": {"every": 2}},
}


def federate(home: Path, changes: dict) -> tuple[Site, dict]:
    """Play a run to its end, then let everything go; return the site's file and its clients' last scores."""
    loop = Loop()
    agent = make_agent(home, "north", {"ann": 36, "bob": 30})
    other = make_agent(home, "south", {"cem": 33})
    loop.add(agent)
    loop.add(other)
    try:
        run = play(loop, home, {**SMALL, **changes}, sites=2)
    finally:
        agent.close()
        other.close()
    last = max(row["round"] for row in run.metrics)
    rows = [r for r in run.metrics if r["round"] == last and r["split"] == "test" and r["stage"] == "own"]
    scores = {row["client"]: row["correct"] for row in rows}
    shutil.rmtree(home / "run")
    return Site.load(home / "north.toml"), scores


@pytest.mark.parametrize("name", METHODS)
def test_the_model_is_the_one_that_was_last_evaluated(name, tmp_path):
    site, scores = federate(tmp_path, METHODS[name])
    models = SiteModels(site)
    assert models.clients == ["ann", "bob"]
    for client in models.clients:
        package = models.client(client).package()
        assert package.test is not None
        with torch.no_grad():
            guesses = package.model.eval()(
                package.inputs.prepared(package.inputs.raw(package.test.x))
            ).argmax(1)
        assert int((guesses == package.test.y).sum()) == scores[client]
        assert package.labels == ["a", "b", "c"]


def test_the_command_writes_every_client_s_model_with_its_card(tmp_path):
    federate(tmp_path, {"method": "fedper"})
    to = str(tmp_path / "out" / "{client}.safetensors")
    done = CliRunner().invoke(app, ["site", "export", str(tmp_path / "north.toml"), "--all", "--to", to])
    assert done.exit_code == 0, done.output
    assert sorted(p.name for p in (tmp_path / "out").glob("*.safetensors")) == [
        "ann.safetensors",
        "bob.safetensors",
    ]
    card = (tmp_path / "out" / "ann.safetensors.md").read_text()
    assert "FedPer, round 2" in card
    assert str(tmp_path) not in card
    again = CliRunner().invoke(app, ["site", "export", str(tmp_path / "north.toml"), "--to", to])
    assert "say whose model" in str(again.exception)


def test_reading_leaves_the_agent_s_folder_as_it_is(tmp_path):
    """The agent may be at work: what it has written and not yet named must stay."""
    site, _ = federate(tmp_path, {"method": "fedper"})
    (folder,) = (site.state / "runs").iterdir()
    unnamed = folder / "blocks" / f"{'0' * 32}.safetensors"
    unnamed.write_bytes(b"just being written")
    before = {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()}
    SiteModels(site).client("ann").model()
    assert {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()} == before


def test_what_is_not_there_is_said(tmp_path):
    make_agent(tmp_path, "north", {"ann": 36}).close()
    with pytest.raises(
        RunFolderError, match=r"holds no models of any run: models are kept once they were evaluated"
    ):
        SiteModels(Site.load(tmp_path / "north.toml"))
    site, _ = federate(tmp_path / "more", {"method": "fedper"})
    (folder,) = (site.state / "runs").iterdir()
    with pytest.raises(RunFolderError, match="no models of run 'x'"):
        SiteModels(site, "x")
    task, _ = SiteStore(folder, reading=True).own("ann")
    (folder / "blocks" / f"{next(iter(task.versions.values()))}.safetensors").unlink()
    with pytest.raises(CheckpointError, match="is missing"):
        SiteModels(site).client("ann").model()
