"""Packages with entry points, as an installer leaves them, made in a folder of the test's own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from intarsia.core import REGISTRIES
from intarsia.experiment import plugged

EXAMPLE = Path(__file__).parents[2] / "examples" / "plugin"
SMALL = {
    "rounds": 2,
    "population": {"name": "digits", "clients": 4},
    "training": {"lr": 0.1, "batch_size": 16},
    "engine": {"name": "debug", "device": "cpu"},
}

Install = Callable[..., Path]


@pytest.fixture(autouse=True)
def alone(monkeypatch, tmp_path):
    """Forget, after a test, what it plugged in; let it trust nothing that the user does."""
    monkeypatch.setenv("INTARSIA_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(plugged, "_LOADED", set())
    for registry in REGISTRIES.values():
        monkeypatch.setattr(registry, "_added", {})
        monkeypatch.setattr(registry, "_loaded", {})


@pytest.fixture
def install(monkeypatch, tmp_path) -> Install:
    """Install a package of one module with these entry points, by group."""

    def made(package: str, code: str, **groups: dict[str, str]) -> Path:
        folder = tmp_path / "site"
        about = folder / f"{package}-1.0.dist-info"
        about.mkdir(parents=True)
        (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
        lines = [
            f"[intarsia.{group}]\n" + "".join(f"{name} = {value}\n" for name, value in points.items())
            for group, points in groups.items()
        ]
        (about / "entry_points.txt").write_text("\n".join(lines))
        (folder / f"{package}.py").write_text(code)
        monkeypatch.setattr(sys, "path", [*sys.path, str(folder)])
        monkeypatch.delitem(sys.modules, package, raising=False)
        return folder

    return made


@pytest.fixture(scope="session")
def example(tmp_path_factory) -> Path:
    """The example package, installed into a folder by pip, offline."""
    source = tmp_path_factory.mktemp("source") / "plugin"
    source.mkdir()
    for path in EXAMPLE.glob("*.*"):
        (source / path.name).write_bytes(path.read_bytes())
    target = tmp_path_factory.mktemp("installed")
    options = ("--no-deps", "--no-build-isolation", "--no-index", "--quiet", "--target", str(target))
    subprocess.run([sys.executable, "-m", "pip", "install", *options, str(source)], check=True)
    return target
