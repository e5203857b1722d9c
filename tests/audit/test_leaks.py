"""What could get out by accident: names, paths, own blocks, foreseeable chance."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import intarsia
from intarsia.audit.played import played
from intarsia.audit.sent import private_in
from intarsia.core import without_paths
from intarsia.engines import Failure, Reply
from intarsia.experiment import Experiment
from intarsia.experiment.settings import load
from intarsia.flower.server.flower_engine import _describe
from intarsia.flower.site.agent import _answer
from intarsia.methods import METHODS
from tests.conftest import NEEDS, SMALL

CODE = str(Path(intarsia.__file__).parent)


@pytest.fixture
def ward(tmp_path: Path) -> intarsia.Run:
    """A run on tables in a folder whose name nobody should learn."""
    source, folder = torch.Generator().manual_seed(0), tmp_path / "home-of-muster" / "ward"
    folder.mkdir(parents=True)
    for name in ("anna", "bertram"):
        rows = torch.randn(40, 2, generator=source).tolist()
        lines = [f"{a:.9f},{b:.9f},{int(a + b > 0)}" for a, b in rows]
        (folder / f"{name}.csv").write_text("\n".join(["a,b,label", *lines]) + "\n")
    population = {"name": "files", "path": str(folder), "target": "label"}
    settings = {"rounds": 1, "population": population, "engine": {"name": "debug", "device": "cpu"}}
    return intarsia.run(settings, out=tmp_path / "run")


def _pieces(folder: Path) -> Iterator[tuple[str, bytes]]:
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            yield path.name, path.read_bytes()
            if zipfile.is_zipfile(path):
                with zipfile.ZipFile(path) as archive:
                    yield from ((f"{path.name}!{n}", archive.read(n)) for n in archive.namelist())


def test_an_export_names_no_place_of_this_machine_no_other_client_and_no_sample(
    ward: intarsia.Run, tmp_path: Path
) -> None:
    ward.client("anna").export(tmp_path / "out")
    x = ward.experiment.setup.population.clients["anna"].data["train"].x
    pieces = dict(_pieces(tmp_path / "out"))
    assert {"model.onnx", "model.pt2", "model.safetensors", "README.md"} <= pieces.keys()
    for name, content in pieces.items():
        for word in ("home-of-muster", str(tmp_path), CODE, "bertram"):
            assert word.encode() not in content, f"{word} in {name}"
        for row in x:
            assert row.numpy().tobytes() not in content, name


def test_a_servers_description_names_no_place_of_its_machine(ward: intarsia.Run, tmp_path: Path) -> None:
    told = json.dumps(_describe(ward.experiment.setup, ward.experiment.settings))
    assert str(tmp_path) not in told
    assert "home-of-muster" not in told


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ('File "/home/max/.venv/lib/torch/nn.py", line 3', 'File "nn.py", line 3'),
        ("cannot read '/data/St. Anna/patients 3.csv': no such file", "cannot read '...': no such file"),
        ("cannot read /data/ward/patients.csv: line 7", "cannot read ...: line 7"),
        (r"cannot read C:\data\ward\patients.csv: line 7", "cannot read ...: line 7"),
        (
            "and/or 3/4 task/cohort-1 base@all https://example.org/a/b",
            "and/or 3/4 task/cohort-1 base@all https://example.org/a/b",
        ),
    ],
)
def test_texts_without_paths(text: str, left: str) -> None:
    assert without_paths(text) == left


def test_what_a_client_failed_of_leaves_its_site_without_paths() -> None:
    failure = Failure(
        "failed", "anna", "train", "", "no file /data/ward/anna.csv", 'File "/data/ward/own.py", line 1'
    )
    told = _answer(Reply("anna", failure=failure))["failure"]
    assert (told["message"], told["details"]) == ("no file ...", 'File "own.py", line 1')


@pytest.mark.parametrize("method", METHODS)
def test_no_message_of_any_method_holds_a_clients_own_block(method: str) -> None:
    experiment = Experiment.build(load(SMALL, [f"method={method}", "rounds=1", *NEEDS.get(method, ())]))
    with played(experiment) as play:
        assert private_in(play.ear) == []
        own = {v for record in play.state.clients.values() for v in record.private}
        shared = {b.version for heard in play.ear.last.values() for b in heard.update.blocks.values()}
        assert not own & shared


def test_masks_cannot_be_foreseen_from_the_seed() -> None:
    """The same seed gives the same sums, and every time other masks."""
    changes = ["sharing={}", "population.generations=['8x8']", "rounds=1", "secure_sums.on=true"]
    experiment = Experiment.build(load(SMALL, changes))
    pools, sent = [], []
    for _ in range(2):
        with played(experiment) as play:
            pools.append({str(a): play.state.pool.get(a).version for a in play.state.pool})
            heard = [h for (_, purpose, _), h in play.ear.last.items() if purpose == "train"]
            sent.append({b.version for h in heard for b in h.update.blocks.values()})
    assert pools[0] == pools[1]
    assert len(sent[0]) == len(sent[1]) == 8
    assert not sent[0] & sent[1]
