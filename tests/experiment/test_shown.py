"""A run in a console and in a notebook, and what is shown while it goes."""

from __future__ import annotations

import builtins
import io
import sys
from pathlib import Path

import pytest
from rich.console import Console

import intarsia
from intarsia.core import SettingsError
from intarsia.experiment.progress import Progress, observers_of, watched
from intarsia.experiment.run_record import run_as_html, run_in_words
from tests.conftest import SMALL


def test_a_run_in_words_and_as_a_table(small_run):
    run = small_run("method=fedavg")
    mean = f"{100 * run.summary['accuracy']['mean']:.1f} %"
    words = run_in_words(run)
    assert words.startswith(
        f"<Run {run.path}: fedavg, 3 of 3 rounds, 8 clients, mean accuracy {mean}, worst client "
    )
    table = run_as_html(run)
    assert table.count("<tr>") == 8
    assert mean in table
    (run.path / "summary.json").unlink()
    assert run_in_words(run) == f"<Run {run.path}: no result yet>"
    assert "none yet" in run_as_html(run)


def test_folder_progress_and_the_time_left_are_told_in_plain_lines(tmp_path):
    text = io.StringIO()
    with Progress(Console(file=text, width=80), folder=tmp_path / "run") as progress:
        intarsia.run(SMALL, out=tmp_path / "run", observer=progress)
    first, *lines = text.getvalue().splitlines()
    assert first == f"Run folder: {tmp_path / 'run'}"
    assert [line.split("  ")[0] for line in lines] == ["round 1/3", "round 2/3", "round 3/3"]
    assert lines[0].endswith("left")
    assert " s left" in lines[1]
    assert "left" not in lines[2]


def test_a_bar_in_a_terminal_has_an_end(tmp_path):
    text = io.StringIO()
    console = Console(file=text, force_terminal=True, width=200)
    with Progress(console) as progress:
        intarsia.run(SMALL, out=tmp_path / "run", observer=progress)
    assert "3/3" in text.getvalue()
    assert "left" in text.getvalue()


@pytest.mark.parametrize(
    ("progress", "terminal", "notebook", "shown"),
    [
        (None, False, False, False),
        (None, True, False, True),
        (None, False, True, True),
        (False, True, True, False),
        (True, False, False, True),
    ],
)
def test_progress_is_shown_where_somebody_looks(progress, terminal, notebook, shown, tmp_path, monkeypatch):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: terminal)
    if notebook:
        monkeypatch.setattr(builtins, "__IPYTHON__", True, raising=False)
    with watched(None, progress, tmp_path) as observer:
        assert isinstance(observer, Progress) == shown
        assert shown or observer is None


def test_an_observer_of_ones_own_stands_in_place_of_it(tmp_path):
    own = intarsia.Observer()
    with watched(own, None, tmp_path) as observer:
        assert observer is own
    with pytest.raises(SettingsError, match="leave one of them out"), watched(own, True, tmp_path):
        pass


def test_trackers_show_nothing_so_progress_is_shown_beside_them(tmp_path):
    tracking = observers_of(None, ["tensorboard"])
    with watched(tracking, True, tmp_path) as observer:
        assert [type(one).__name__ for one in observer.observers] == ["Progress", "TensorBoard"]
    with watched(observers_of(intarsia.Observer(), ["tensorboard"]), None, tmp_path) as observer:
        assert [type(one).__name__ for one in observer.observers] == ["Observer", "TensorBoard"]


def test_a_run_and_its_going_on_show_their_progress(tmp_path, capsys):
    intarsia.run(SMALL, out=tmp_path / "run", progress=True)
    assert f"Run folder: {tmp_path / 'run'}" in capsys.readouterr().out.replace("\n", "")
    intarsia.resume(tmp_path / "run", rounds=4, progress=True)
    assert "round 4/4" in capsys.readouterr().out
    intarsia.run(SMALL, out=tmp_path / "other", progress=False)
    assert not capsys.readouterr().out


def test_a_warning_names_the_line_of_the_user(tmp_path):
    with pytest.warns(intarsia.IntarsiaWarning, match="only 8 clients") as told:
        intarsia.run(SMALL, changes=["sampling.clients=9"], out=tmp_path / "run")
    assert {Path(warning.filename) for warning in told} == {Path(__file__)}
