"""Files on disk: whole or not at all, never over others unasked; records, cards, what is missing."""

from __future__ import annotations

import builtins
import io
import json

import numpy as np
import onnx
import pytest
import torch
from safetensors import safe_open

import intarsia
from intarsia.core import SettingsError
from intarsia.data.population import Goal
from intarsia.data.recorded import Form
from intarsia.export import ExportError, Inputs, Package, Predictor, export
from intarsia.models import MLP
from tests.conftest import SMALL


@pytest.fixture
def package() -> Package:
    return Package("one | two", MLP((4,)).build((3,), 2), Inputs(Form((3,))), Goal(2, labels=("ok", "bad")))


def test_every_file_says_what_it_is(package, tmp_path):
    export(package, tmp_path / "out")
    told = json.loads((tmp_path / "out" / "model.json").read_text())
    inside = onnx.load(tmp_path / "out" / "model.onnx")
    entries = {entry.key: entry.value for entry in inside.metadata_props}
    assert json.loads(entries["labels"]) == ["ok", "bad"] == told["labels"]
    assert (entries["client"], entries["intarsia_version"]) == ("one | two", intarsia.__version__)
    assert [d.dim_param or d.dim_value for d in inside.graph.input[0].type.tensor_type.shape.dim] == [
        "batch",
        3,
    ]
    assert [output.name for output in inside.graph.output] == ["outputs", "probabilities"]
    extra = {"intarsia.json": ""}
    torch.export.load(io.BytesIO((tmp_path / "out" / "model.pt2").read_bytes()), extra_files=extra)
    with safe_open(tmp_path / "out" / "model.safetensors", "pt") as weights:
        for text in (extra["intarsia.json"], entries["intarsia"], weights.metadata()["intarsia"]):
            about = json.loads(text)
            assert about == {key: told[key] for key in about}
    assert set(told["checked"]) == {"model.onnx", "model.pt2", "model.safetensors"}
    card = (tmp_path / "out" / "README.md").read_text()
    assert "# The model of client `one | two`" in card
    assert "64 made inputs; the client's data is not at hand" in card


def test_no_sample_of_a_client_goes_into_a_file(tmp_path):
    run = intarsia.run(SMALL, changes=["rounds=1"], out=tmp_path / "run")
    package = run.client("client-00").package()
    assert package.test is not None
    (example,), _ = package.graph.example_inputs
    assert not any(torch.equal(row, mine) for row in example for mine in package.test.x)


def test_what_is_there_is_not_written_over_unasked(package, tmp_path):
    export(package, tmp_path / "model.pt2")
    before = (tmp_path / "model.pt2").read_bytes()
    with pytest.raises(ExportError, match=r"model\.pt2 is there already: .* \(--force\)"):
        export(package, tmp_path / "model.pt2")
    (tmp_path / "model.pt2").unlink()
    with pytest.raises(ExportError, match=r"model\.pt2\.json is there already"):
        export(package, tmp_path / "model.pt2")
    export(package, tmp_path / "model.pt2", force=True)
    assert len((tmp_path / "model.pt2").read_bytes()) == len(before)


def test_a_folder_is_replaced_only_by_its_like(package, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    for force in (False, True):
        with pytest.raises(ExportError, match="empty it: what is in it is no export"):
            export(package, tmp_path / "mine", force=force)
    export(package, tmp_path / "out")
    with pytest.raises(ExportError, match=r"write over it \(--force\)"):
        export(package, tmp_path / "out")
    (tmp_path / "out" / "model.json").write_text('{"client": "old"}')
    export(package, tmp_path / "out", force=True)
    assert Predictor.open(tmp_path / "out").client == "one | two"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["mine", "out"]


def test_an_export_that_fails_leaves_nothing(package, tmp_path, monkeypatch):
    from intarsia.export import write

    monkeypatch.setattr(
        write, "run_pt2", lambda data: (lambda raw: [t + 1e-3 for t in package.deployed(raw)], {})
    )
    for name in ("model.pt2", "out"):
        with pytest.raises(ExportError, match=r"differs from the model of client 'one | two' by 1\.0e-03"):
            export(package, tmp_path / name)
    assert list(tmp_path.iterdir()) == []


def test_other_endings_are_refused(package, tmp_path):
    with pytest.raises(
        SettingsError, match=r"'model\.h5' has no known ending: write \.onnx, \.pt2, \.safetensors"
    ):
        export(package, tmp_path / "model.h5")


def test_without_onnx_the_command_to_install_it_is_said(package, tmp_path, monkeypatch):
    usual = builtins.__import__

    def without(name, *more, **others):
        if name.partition(".")[0] == "onnxscript":
            raise ImportError(name="onnxscript")
        return usual(name, *more, **others)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(SettingsError, match=r"pip install 'intarsia\[onnx\]' \(onnxscript is missing\)"):
        export(package, tmp_path / "model.onnx")
    monkeypatch.setattr("intarsia.export.write.has_onnx", lambda: False)
    written = export(package, tmp_path / "out")
    assert [file.name for file in written.files] == [
        "README.md",
        "model.json",
        "model.pt2",
        "model.safetensors",
    ]


def test_cards_hold_data_scores_and_settings_without_paths(fleet, tmp_path):
    fleet.client("m4").export(tmp_path / "m4.safetensors")
    card = (tmp_path / "m4.safetensors.md").read_text()
    assert "Trained with FedPer, round 2 of run `fleet`" in card
    assert "| split | samples | faulty | ok |" in card
    judged = fleet.client("m4").judged()
    low, high = judged["interval"]["accuracy"]
    own, usual = judged["metrics"]["accuracy"], judged["usual"]["accuracy"]
    assert f"On {judged['n']} test samples" in card
    assert f"| accuracy | {own:.4g} | {usual:.4g} | {low:.4g} to {high:.4g} |" in card
    assert "| `mode` | words | none of them | idle, run, test |" in card
    assert 'path = "fleet.csv"' in card
    assert str(fleet.path.parent) not in card


def test_a_file_of_someone_elses_is_no_export(package, tmp_path):
    graph = torch.export.export(torch.nn.Linear(2, 2), (torch.zeros(1, 2),))
    torch.export.save(graph, tmp_path / "other.pt2")
    with pytest.raises(ExportError, match="does not say what it is"):
        Predictor.open(tmp_path / "other.pt2")


def test_a_card_names_the_group_that_was_found_and_no_metric_that_is_not_defined(tmp_path):
    draw = np.random.default_rng(1)
    data = {
        f"c{i}": {s: (draw.normal(size=(20, 3)).astype(np.float32), [i % 2] * 20) for s in ("train", "test")}
        for i in range(4)
    }
    settings = {
        "rounds": 1,
        "method": "modfl",
        "sharing": {"cohorts": "found", "number": 2},
        "model": {"name": "mlp", "hidden": [4]},
        "evaluation": {"metrics": ["accuracy", "auc"]},
        "engine": {"name": "debug", "device": "cpu"},
    }
    run = intarsia.run(settings, data=data, out=tmp_path / "run")
    assert run.client("c1").judged()["metrics"]["auc"] is None
    run.client("c1").export(tmp_path / "model.pt2")
    card = (tmp_path / "model.pt2.md").read_text()
    (block, of), *_ = run.state().groups.items()
    assert f"found group of {block} `{of['c1']}`" in card
    assert "cohort `default`" not in card
    assert "| accuracy |" in card
    assert "| auc |" not in card
    assert "None" not in card
