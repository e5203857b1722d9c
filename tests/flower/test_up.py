"""`intarsia flower up`: a whole federation from one command, and nothing left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import torch

pytest.importorskip("flwr", reason="needs Flower: pip install 'intarsia[flower]'")

import intarsia
from tests.flower.conftest import SMALL, locally, same

pytestmark = pytest.mark.flower_slow

CHANGES = {"method": "fedper", "rounds": 4}


@pytest.fixture
def command(tmp_path, monkeypatch):
    """The command, with a place for temporary files of its own."""
    place = tempfile.mkdtemp(prefix="up-")
    monkeypatch.setenv("TMPDIR", place)
    settings = intarsia.load({**SMALL, **CHANGES, "engine": {"workers": 1, "device": "cpu"}})
    (tmp_path / "settings.toml").write_text(settings.to_toml())
    options = ["--sites", "2", "--recipe", str(tmp_path / "settings.toml"), "--out", str(tmp_path / "run")]
    yield [sys.executable, "-m", "intarsia", "flower", "up", *options], Path(place)
    assert not list(Path(place).iterdir())
    os.rmdir(place)


def left_behind(place: Path) -> list[str]:
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if f"FLWR_HOME={place}/".encode() in (entry / "environ").read_bytes():
                found.append((entry / "cmdline").read_text())
        except OSError:
            continue
    return [command for command in found if command]


def test_it_leaves_a_run_folder_as_any_other(command, tmp_path):
    arguments, place = command
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "round 4 of 4 done" in done.stdout
    assert not left_behind(place)
    run, reference = intarsia.open_run(tmp_path / "run"), locally(tmp_path / "local", CHANGES)
    assert same(run, reference)
    known = {key: value for key, value in reference.population.items() if key != "splits"}
    assert run.population == known  # which rows a site's clients hold is not told to the server
    mine, yours = (r.client("client-03").model().state_dict() for r in (run, reference))
    assert all(torch.equal(mine[name], yours[name]) for name in yours)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_after_ctrl_c_nothing_is_left_and_the_run_goes_on(command, tmp_path, number):
    arguments, place = command
    process = subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True)
    for line in process.stdout:
        if "round 2: train" in line:
            break
    process.send_signal(number)
    said = process.stdout.read()
    assert process.wait(timeout=60) == 130
    assert f"intarsia resume {tmp_path / 'run'}" in said.replace("\n", "")
    assert not left_behind(place)
    run = intarsia.resume(tmp_path / "run")
    assert same(run, locally(tmp_path / "local", CHANGES))
