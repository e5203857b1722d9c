"""The oldest Python that is promised: the same everywhere, and one that what we need can be installed on."""

from __future__ import annotations

import importlib.metadata
import re
import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

HOME = Path(__file__).parents[1]
PROJECT = tomllib.loads((HOME / "pyproject.toml").read_text())
FLOOR = PROJECT["project"]["requires-python"].removeprefix(">=")
SAID = re.compile(r"Python (3\.\d+) or newer")


def test_types_are_checked_for_the_floor():
    assert PROJECT["tool"]["mypy"]["python_version"] == FLOOR
    assert "target-version" not in PROJECT["tool"]["ruff"], "ruff takes it from requires-python"


def test_the_makefile_asks_for_the_floor():
    text = (HOME / "Makefile").read_text()
    assert re.findall(r"version_info < \((\d+), (\d+)\)", text) == [tuple(FLOOR.split("."))]
    assert SAID.findall(text) == [FLOOR]


def test_every_page_says_the_floor():
    pages = [HOME / "README.md", HOME / "CONTRIBUTING.md", *(HOME / "docs").glob("*.md")]
    said = [version for page in pages for version in SAID.findall(page.read_text())]
    assert said
    assert set(said) == {FLOOR}


def test_no_code_is_for_an_older_python():
    older = re.compile(r"version_info (?:>=|<) \(3, (\d+)\)")
    files = [path for folder in ("src", "benchmarks") for path in (HOME / folder).rglob("*.py")]
    lowest = int(FLOOR.split(".")[1])
    assert files
    assert not [path for path in files if any(int(v) <= lowest for v in older.findall(path.read_text()))]


def test_flower_can_be_installed_on_the_floor():
    (needed,) = PROJECT["project"]["optional-dependencies"]["flower"]
    wanted = Requirement(needed)
    flower = importlib.metadata.metadata(wanted.name)
    assert wanted.specifier.contains(flower["Version"])
    assert SpecifierSet(flower["Requires-Python"]).contains(f"{FLOOR}.0")
