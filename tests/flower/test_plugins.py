"""Own models on Flower: code that is installed, or named by the site's own operator; never code that the server names."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

pytest.importorskip("flwr", reason="needs Flower: pip install 'intarsia[flower]'")

import intarsia
from intarsia.core import SettingsError
from intarsia.flower.message_schema import PROBLEM, WHO
from intarsia.flower.site.agent import Agent
from tests.flower.conftest import NORTH, SOUTH, locally, same
from tests.flower.loopback import Loop, make_agent, play
from tests.flower.test_parts import Wire, write_site
from tests.plugins.conftest import alone  # noqa: F401 - a fixture that every test here uses

EXAMPLE = Path(__file__).parents[2] / "examples" / "plugin" / "example_plugin.py"
CHANGES = {"method": "lg_fedavg", "model": {"name": "gated_mlp", "hidden": [12]}, "sharing": {}}
LOOPED = {"rounds": 1, "training": {"batch_size": 8}, **CHANGES}


@pytest.mark.flower_slow
def test_a_file_that_both_sides_name_runs_and_each_site_exports_without_the_server(
    trial, tmp_path, monkeypatch
):
    """With real processes: the server and its link have gone, and one agent was killed, when models are exported."""
    trial.environment["INTARSIA_PLUGINS"] = str(EXAMPLE)
    trial.end("link")
    trial.start_link()
    del trial.environment["INTARSIA_PLUGINS"]
    trial.join("north", NORTH, plugins=[str(EXAMPLE)])
    trial.join("south", SOUTH, plugins=[str(EXAMPLE)])
    run = trial.play("plugged", CHANGES)
    trial.end("site-north", 9)
    trial.stop()
    monkeypatch.setenv("INTARSIA_PLUGINS", str(EXAMPLE))
    local = locally(tmp_path / "local", CHANGES)
    assert same(run, local)
    out = tmp_path / "model.safetensors"
    command = ["site", "export", str(trial.folder / "north.toml"), "--client", NORTH[1], "--to", str(out)]
    without = {key: value for key, value in os.environ.items() if key != "INTARSIA_PLUGINS"}
    done = subprocess.run(
        [sys.executable, "-m", "intarsia", *command], env=without, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "largest difference from the original 0.0e+00" in " ".join(done.stdout.split())
    own = local.client(NORTH[1]).model().state_dict()
    written = load_file(out)
    assert own.keys() <= written.keys()
    assert all(torch.equal(written[name], tensor) for name, tensor in own.items())


def test_a_site_that_lacks_a_plug_in_is_refused_by_name(tmp_path, capsys):
    intarsia.plug_in(EXAMPLE)
    loop, said = Loop(), lambda asked: forget if asked["kind"] == WHO else None

    def forget(answer):
        del answer.header["plugins"]

    loop.add(make_agent(tmp_path, "north", {"ann": 30, "bob": 30}))
    loop.add(make_agent(tmp_path, "south", {"cem": 30}), said)
    try:
        run = play(loop, tmp_path, LOOPED)
    finally:
        for agent, _ in loop.sites.values():
            agent.close()
    told = capsys.readouterr().out
    assert "site 'south' lacks 'lg_fedavg' of methods" in told
    assert 'plugins = ["FILE.py"]' in told
    assert {row["client"] for row in run.metrics} == {"ann", "bob"}


def test_no_code_comes_with_an_app(tmp_path):
    loop = Loop()
    with pytest.raises(
        SettingsError, match=r"plugins: no code comes with an app.*INTARSIA_PLUGINS=FILE intarsia"
    ):
        play(loop, tmp_path, {**LOOPED, "plugins": [str(EXAMPLE)]})
    assert "gated_mlp" not in intarsia.models.MODELS


def test_a_server_cannot_make_a_site_run_a_file(tmp_path):
    """Neither as a plug-in of the settings, nor under the name of a module."""
    evil = tmp_path / "evil.py"
    evil.write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    agent = Agent(write_site(tmp_path), lambda text: None)
    wire = Wire(agent)
    honest = wire.engine.description["settings"]
    lines = {
        "names files of code": f'plugins = ["{evil}"]\n{honest}',
        "there is no 'evil'": honest.replace('name = "fedavg"', 'name = "evil"'),
        "there is no": honest.replace('name = "fedavg"', f'name = "{evil}"'),
    }
    for words, settings in lines.items():
        wire.engine.description["settings"] = settings
        said = wire.ask().header
        assert said["kind"] == PROBLEM
        assert words in said["message"]
    agent.close()
    assert not (tmp_path / "ran").exists()
    assert "evil" not in sys.modules
