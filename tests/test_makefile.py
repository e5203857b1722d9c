"""The Makefile's promises, with stand-ins for Python and pip that cost no installation."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

MAKEFILE = Path(__file__).parents[1] / "Makefile"

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="needs make")

PYTHON = """#!/bin/sh
case "$*" in
  *version_info*) exit {old} ;;
  *ensurepip*) exit {no_venv} ;;
  "-m venv --clear .venv") mkdir -p .venv/bin; cp pip.sh .venv/bin/python ;;
esac
"""
PIP = """#!/bin/sh
case "$*" in
  "-m pip --version") exit 0 ;;
  "-m pip install -e .[dev,flower]") echo "$PIP_INDEX_URL" >> installs; [ ! -e broken ] ;;
esac
"""


@pytest.fixture
def project(tmp_path):
    shutil.copy(MAKEFILE, tmp_path)
    (tmp_path / "pyproject.toml").write_text("")
    (tmp_path / "pip.sh").write_text(PIP)
    (tmp_path / "pip.sh").chmod(0o755)
    python(tmp_path)
    return tmp_path


def python(folder: Path, *, old: int = 0, no_venv: int = 0) -> None:
    (folder / "python").write_text(PYTHON.format(old=old, no_venv=no_venv))
    (folder / "python").chmod(0o755)


def setup(folder: Path, code: int = 0, **environment: str) -> str:
    command = ["make", "setup", "PYTHON=./python"]
    clean = {k: v for k, v in os.environ.items() if not k.startswith("MAKE")}
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, env={**clean, **environment})
    assert (done.returncode == 0) == (code == 0), done.stdout + done.stderr
    return done.stderr


def installs(folder: Path) -> list[str]:
    path = folder / "installs"
    return path.read_text().splitlines() if path.exists() else []


def test_an_old_python_is_refused_with_the_fix(project):
    python(project, old=1)
    assert "needs Python 3.11 or newer" in (text := setup(project, code=2))
    assert "make setup PYTHON=python3.12" in text
    assert not (project / ".venv").exists()


def test_a_python_without_venv_is_refused_with_the_fix(project):
    python(project, no_venv=1)
    assert "apt-get install python3-venv" in setup(project, code=2)
    assert not (project / ".venv").exists()


def test_it_installs_once_with_pips_own_settings(project):
    setup(project, PIP_INDEX_URL="a-mirror")
    setup(project)
    assert installs(project) == ["a-mirror"]


def test_an_interrupted_installation_is_repaired(project):
    (project / "broken").touch()
    setup(project, code=2)
    (project / "broken").unlink()
    setup(project)
    setup(project)
    assert len(installs(project)) == 2


def test_a_changed_pyproject_installs_again(project):
    setup(project)
    later = (project / ".venv" / ".installed").stat().st_mtime + 10
    os.utime(project / "pyproject.toml", (later, later))
    setup(project)
    assert len(installs(project)) == 2
