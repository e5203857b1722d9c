"""A run folder is enough: opened after it moved, on another machine, without its data."""

from __future__ import annotations

import json

import pytest
import torch

import intarsia
from intarsia.core import SettingsError
from tests.conftest import SMALL


def test_a_folder_of_an_earlier_version_needs_the_data_and_says_so(tmp_path):
    run = intarsia.run(SMALL, changes=["rounds=1"], out=tmp_path / "run")
    model = run.client("client-00").model().state_dict()
    about = json.loads((run.path / "population.json").read_text())
    (run.path / "population.json").write_text(json.dumps({k: v for k, v in about.items() if k != "format"}))
    again = intarsia.open_run(run.path).client("client-00").model().state_dict()
    assert all(torch.equal(again[name], tensor) for name, tensor in model.items())
    settings = run.path / "settings.toml"
    settings.write_text(settings.read_text().replace(about_hash(run), "0" * 16))
    with pytest.raises(intarsia.IntarsiaError, match=r"so that opening them takes the data: the split is"):
        intarsia.open_run(run.path).client("client-00")


def about_hash(run: intarsia.Run) -> str:
    return run.settings.split_hash


def test_a_damaged_record_is_named(tmp_path):
    run = intarsia.run(SMALL, changes=["rounds=1"], out=tmp_path / "run")
    about = json.loads((run.path / "population.json").read_text())
    del about["clients"]["client-03"]["inputs"]
    (run.path / "population.json").write_text(json.dumps(about))
    with pytest.raises(intarsia.IntarsiaError, match=r"population\.json is damaged"):
        intarsia.open_run(run.path).client("client-00")


def test_opened_models_need_no_weights_to_start_from_and_no_data_folder(tmp_path):
    first = intarsia.run(SMALL, changes=["rounds=1"], out=tmp_path / "first")
    run = intarsia.run(
        SMALL,
        changes=["rounds=1", f"start_from={first.path}", f"data_folder={tmp_path}"],
        out=tmp_path / "run",
    )
    model = run.client("client-00").model().state_dict()
    first.path.rename(tmp_path / "gone")
    again = intarsia.open_run(run.path).client("client-00").model().state_dict()
    assert all(torch.equal(again[name], tensor) for name, tensor in model.items())


def test_loading_a_run_folder_says_how_to_open_it(tmp_path):
    run = intarsia.run(SMALL, changes=["rounds=1"], out=tmp_path / "run")
    with pytest.raises(SettingsError, match=r"or open the run in it: intarsia\.open_run\('.*run'\)"):
        intarsia.load(run.path)
    assert repr(run).startswith(f"<Run {run.path}: ")
    assert run._repr_html_().startswith("<table>")
    assert ".export(to)" in repr(run)
