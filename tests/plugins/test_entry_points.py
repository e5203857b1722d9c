"""Plug-ins of other packages: found by entry points, imported once they are used."""

from __future__ import annotations

import subprocess
import sys

import pytest
from typer.testing import CliRunner

import intarsia
from intarsia.cli.app import app
from intarsia.core import PluginError, SettingsError
from intarsia.data import DATASETS, PARTITIONS, POPULATIONS
from intarsia.methods import METHODS
from intarsia.models import MODELS
from tests.plugins.conftest import SMALL

MODEL = """
import math
from typing import ClassVar
from torch import nn
from intarsia import part
from intarsia.models import Architecture

@part
class Tiny(Architecture):
    '''A tiny one.'''
    name: ClassVar[str] = "tiny"
    summary: ClassVar[str] = "one layer of a package"
    bias: bool = True
    '''Whether it has one.'''

    def build(self, shape, outputs):
        return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), outputs, bias=self.bias))
"""
PARTITION = """
import numpy as np
from typing import ClassVar
from intarsia import part
from intarsia.data.partitions.iid import IID
from intarsia.data.sources.digits import Digits
from intarsia.data.datasets import Dataset

@part
class Even(IID):
    name: ClassVar[str] = "even"

@part
class Figures(Digits):
    name: ClassVar[str] = "figures"

SET = Dataset("stamps", "images", "stamps of all countries", ())
"""


def test_the_example_package_is_found_listed_explained_and_run(example, monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "path", [*sys.path, str(example)])
    assert "example_plugin" not in sys.modules
    assert MODELS.is_plugin("gated_mlp")
    assert "example_plugin" not in sys.modules, "a name alone imports nothing"
    run = intarsia.run({**SMALL, "method": "lg_fedavg", "model": "gated_mlp"}, out=tmp_path / "run")
    assert {row["block"] for row in run.traffic} - {""} == {"head"}
    assert run.settings.model == {"name": "gated_mlp", "hidden": [32]}
    assert run.settings.sharing["name"] == "lg_fedavg"
    model = intarsia.open_run(tmp_path / "run").client("client-00").model()
    assert type(model.hidden1).__name__ == "GatedLayer"
    listed = CliRunner().invoke(app, ["list", "methods"])
    assert "lg_fedavg" in listed.output
    explained = CliRunner().invoke(app, ["explain", "gated_mlp"])
    assert "How wide the hidden layers are." in " ".join(explained.output.replace("│", " ").split())


def test_every_kind_of_part_has_a_group(install, tmp_path):
    points = (
        {"even": "parts_of_mine:Even"},
        {"figures": "parts_of_mine:Figures"},
        {"stamps": "parts_of_mine:SET"},
    )
    install("parts_of_mine", PARTITION, partitions=points[0], populations=points[1], datasets=points[2])
    assert DATASETS["stamps"].summary == "stamps of all countries"
    assert PARTITIONS["even"].__name__ == "Even"
    assert POPULATIONS["figures"].__name__ == "Figures"
    run = intarsia.run(
        {**SMALL, "rounds": 1, "population": {"name": "figures", "clients": 3}}, out=tmp_path / "run"
    )
    assert run.settings.population["name"] == "figures"
    assert len(run.clients) == 3


@pytest.mark.parametrize(
    ("name", "code", "value", "words"),
    [
        ("tiny", "raise OSError('no driver')", "bad:Tiny", "OSError: no driver"),
        ("tiny", "x = 1", "bad:Tiny", "AttributeError"),
        (
            "tiny",
            "class Tiny: name = 'tiny'",
            "bad:Tiny",
            "is not a class of intarsia.models.spec.Architecture",
        ),
        ("small", MODEL, "bad:Tiny", "calls itself 'tiny'"),
    ],
)
def test_a_broken_plug_in_is_named_and_breaks_no_other_run(install, tmp_path, name, code, value, words):
    install("bad", code, models={name: value})
    with pytest.raises(
        PluginError, match=f"plug-in '{name}' of package bad .*intarsia.models: {value}.*"
    ) as error:
        intarsia.run({**SMALL, "model": name}, out=tmp_path / "run")
    assert words in str(error.value)
    assert not (tmp_path / "run").exists()
    intarsia.run({**SMALL, "rounds": 1}, out=tmp_path / "other")
    listed = CliRunner().invoke(app, ["list", "models"])
    assert listed.exit_code == 0
    assert "mlp" in listed.output
    assert "package bad" in " ".join(listed.stderr.split())
    with pytest.raises(SettingsError, match="there is no 'tinny'"):
        intarsia.run({**SMALL, "model": "tinny"}, out=tmp_path / "run")


def test_a_name_of_the_box_stays_the_box_s_and_the_list_says_so(install):
    install("greedy", MODEL.replace('"tiny"', '"mlp"'), models={"mlp": "greedy:Tiny"})
    assert MODELS["mlp"].__module__.startswith("intarsia.")
    assert not MODELS.is_plugin("mlp")
    listed = CliRunner().invoke(app, ["list", "models"])
    said = " ".join(listed.stderr.split())
    assert "plug-in 'mlp' of package greedy" in said
    assert "taken" in said
    assert "greedy" not in sys.modules


def test_two_packages_with_one_name_are_both_named(install):
    install("one", MODEL, models={"tiny": "one:Tiny"})
    install("other", MODEL, models={"tiny": "other:Tiny"})
    with pytest.raises(PluginError, match=r"two of the name 'tiny'.*package o.*package o.*uninstall one"):
        MODELS["tiny"]


def test_help_imports_neither_torch_nor_plug_ins(install):
    folder = install("loud", "raise SystemExit('imported')", methods={"loud": "loud:Loud"})
    code = (
        f"import sys; sys.path.append({str(folder)!r}); sys.argv = ['intarsia', '--help']\n"
        "from intarsia.cli import main\n"
        "try: main()\n"
        "except SystemExit as end: assert not end.code, end.code\n"
        "assert 'torch' not in sys.modules and 'loud' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
    assert "loud" in METHODS
