"""Plug-ins in files: run if the user names them, and never because something that travelled does."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import tomli_w
from typer.testing import CliRunner

import intarsia
from intarsia.cli.app import app
from intarsia.core import REGISTRIES, PluginError
from intarsia.experiment import plugged
from tests.plugins.conftest import EXAMPLE, SMALL

CODE = (EXAMPLE / "example_plugin.py").read_text()
CHOSEN = {**SMALL, "method": "lg_fedavg", "model": "gated_mlp", "plugins": ["mine.py"]}


@pytest.fixture
def home(tmp_path) -> Path:
    """A folder of the user's own: settings, and a file of code beside them."""
    folder = tmp_path / "home"
    folder.mkdir()
    (folder / "mine.py").write_text(CODE)
    (folder / "mine.toml").write_text(tomli_w.dumps(CHOSEN))
    return folder


def forget() -> None:
    """Be as a new process is."""
    plugged._LOADED.clear()
    for registry in REGISTRIES.values():
        registry._added.clear()


def test_a_file_beside_the_settings_is_run_and_recorded(home, tmp_path):
    run = intarsia.run(home / "mine.toml", out=tmp_path / "run")
    assert run.settings.plugins == (str(home / "mine.py"),)
    assert len(run.settings.plugin_hashes[0]) == 64
    forget()
    assert intarsia.open_run(tmp_path / "run").client("client-00").model().hidden1 is not None
    forget()
    assert intarsia.resume(tmp_path / "run").summary == run.summary


def test_settings_without_plug_ins_do_not_speak_of_them():
    assert "plugin" not in intarsia.load("quickstart").to_toml()
    assert not {key for key in intarsia.load("quickstart").model_dump() if "plugin" in key}


def test_a_run_that_travelled_runs_no_code(home, tmp_path, monkeypatch):
    """Whoever sends a run folder, with a file in it or beside it, does not make the receiver run it."""
    intarsia.run(home / "mine.toml", out=tmp_path / "run")
    forget()
    monkeypatch.setenv("INTARSIA_CACHE", str(tmp_path / "another user's"))
    with pytest.raises(PluginError, match=r"never named by you.*INTARSIA_PLUGINS=FILE"):
        intarsia.open_run(tmp_path / "run").client("client-00")
    sent = tmp_path / "run" / "settings.toml"
    (tmp_path / "run" / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    sent.write_text(sent.read_text().replace(str(home / "mine.py"), "evil.py"))
    with pytest.raises(PluginError, match=r"evil.py .* has changed since"):
        intarsia.resume(tmp_path / "run")
    assert not (tmp_path / "ran").exists()


def test_a_missing_or_changed_file_is_asked_for_again(home, tmp_path, monkeypatch):
    intarsia.run(home / "mine.toml", out=tmp_path / "run")
    elsewhere = shutil.move(home / "mine.py", tmp_path / "moved.py")
    forget()
    with pytest.raises(PluginError, match=r"mine.py \(sha256 .*\), which is not there any more"):
        intarsia.open_run(tmp_path / "run").client("client-00")
    (home / "mine.py").write_text(CODE + "\n")
    with pytest.raises(PluginError, match="has changed since"):
        intarsia.open_run(tmp_path / "run").client("client-00")
    monkeypatch.setenv("INTARSIA_PLUGINS", str(elsewhere))
    assert intarsia.open_run(tmp_path / "run").client("client-00").model() is not None
    with pytest.raises(PluginError, match="another content than the settings were written for"):
        intarsia.run(tmp_path / "run" / "settings.toml", out=tmp_path / "again")


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("import nothing_of_the_kind", "cannot be run: ModuleNotFoundError"),
        ("x = 1", "defines nothing that settings can name"),
        (CODE.replace('"gated_mlp"', '"mlp"'), "models has a 'mlp' of Intarsia"),
        (None, "cannot be read: No such file"),
    ],
)
def test_a_file_that_cannot_be_used_is_named(home, tmp_path, code, words):
    (home / "mine.py").write_text(code) if code else (home / "mine.py").unlink()
    with pytest.raises(PluginError, match=r"mine.py.*") as error:
        intarsia.run(home / "mine.toml", out=tmp_path / "run")
    assert words in str(error.value)
    assert not (tmp_path / "run").exists()


def test_the_environment_names_files_for_every_command(home):
    there = {**os.environ, "INTARSIA_PLUGINS": str(home / "mine.py")}
    command = [sys.executable, "-m", "intarsia", "explain", "gated_mlp"]
    done = subprocess.run(command, env=there, capture_output=True, text=True, check=True)
    assert "model.hidden" in done.stdout


def test_a_file_may_change_between_two_runs_of_one_process(home, tmp_path):
    intarsia.run(home / "mine.toml", out=tmp_path / "one")
    (home / "mine.py").write_text(CODE.replace("(32,)", "(8,)"))
    again = intarsia.run(home / "mine.toml", out=tmp_path / "two")
    assert again.settings.model["hidden"] == [8]


def test_plan_and_list_know_files_too(home, monkeypatch):
    shown = CliRunner().invoke(app, ["plan", str(home / "mine.toml")])
    assert shown.exit_code == 0, shown.output
    assert "head@all" in shown.output
