"""The gallery: every example runs, and the page shows what was recorded of these very programs."""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
GALLERY = ROOT / "examples" / "gallery"
WRITE = runpy.run_path(str(GALLERY / "_write.py"))
NAMES = WRITE["names"]()


@pytest.mark.parametrize("name", NAMES)
def test_an_example_runs_and_draws(name, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("GALLERY_ROUNDS", "1")
    monkeypatch.setenv("GALLERY_PICTURES", str(tmp_path))
    monkeypatch.setattr(sys, "path", [str(GALLERY), *sys.path])
    runpy.run_path(str(GALLERY / f"{name}.py"), run_name="__main__")
    assert "mean" in capsys.readouterr().out
    assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("name", NAMES)
def test_the_page_shows_what_the_program_printed(name):
    recorded = json.loads(WRITE["RESULTS"].read_text())
    again = f"run python examples/gallery/_write.py {name}"
    assert recorded[name]["program"] == WRITE["program"](name), (
        f"{name} has changed since it was recorded: {again}"
    )
    page = WRITE["PAGE"].read_text()
    assert f"{name}.py\n```\n\n```\n{recorded[name]['printed']}\n```\n" in page, again
    assert f"pictures/gallery/{name}.png" in page
    assert (WRITE["PICTURES"] / f"{name}.png").stat().st_size < 100_000


def test_there_are_six_and_each_is_short():
    assert len(NAMES) == 6
    for name in NAMES:
        text = (GALLERY / f"{name}.py").read_text()
        assert len(text.splitlines()) < 60, name
        assert "import intarsia\n" in text
        assert "from intarsia." not in text
