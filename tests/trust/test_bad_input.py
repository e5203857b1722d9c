"""What mutated files brought to light: each gives an error of ours (`python -m benchmarks.fuzz` looks for more)."""

from __future__ import annotations

import hashlib
import io
import json
import zipfile

import numpy as np
import pytest

import intarsia
from intarsia.core import CheckpointError, DataError, IntarsiaError, PluginError, RunFolderError
from intarsia.data.packed import arrays
from intarsia.data.preparation import preparations_of
from intarsia.data.published.images import _leaf_writers
from intarsia.data.recorded import population_from
from intarsia.data.tables import read_table
from intarsia.experiment import load
from intarsia.experiment.plugged import plug_in_again
from intarsia.export.graph import ExportError
from intarsia.export.predictor import Predictor
from intarsia.runs import Journals
from intarsia.runs.journal import Mark


def test_an_archive_packed_in_a_way_that_nobody_knows(tmp_path):
    file = io.BytesIO()
    np.savez(file, x=np.zeros(3))
    data = bytearray(file.getvalue())
    for at in (8, data.index(b"PK\x01\x02") + 10):
        data[at] = 77
    (tmp_path / "x.npz").write_bytes(data)
    with pytest.raises(DataError, match=r"x\.npz cannot be read.*compression"):
        arrays(tmp_path / "x.npz")


def test_an_array_larger_than_any_memory(tmp_path):
    head = io.BytesIO()
    np.lib.format.write_array_header_1_0(head, {"descr": "<f8", "fortran_order": False, "shape": (1 << 50,)})
    with zipfile.ZipFile(tmp_path / "x.npz", "w") as archive:
        archive.writestr("x.npy", head.getvalue())
    with pytest.raises(DataError, match="cannot be read"):
        arrays(tmp_path / "x.npz")


@pytest.mark.parametrize("data", [b"\xff\xfe", b"\xef\xbb\xbf\n", b',,,\n" ",\n', b"\xc2\xa0\n\n"])
def test_a_table_without_a_word(data, tmp_path):
    (tmp_path / "x.csv").write_bytes(data)
    with pytest.raises(DataError, match=r"x\.csv is empty"):
        read_table(tmp_path / "x.csv")


def test_a_leaf_file_nested_without_end(tmp_path):
    (tmp_path / "x.json").write_text("[" * 100_000)
    with pytest.raises(DataError, match="no LEAF file"):
        list(_leaf_writers(tmp_path / "x.json"))


@pytest.mark.parametrize("capacity", [10**400, None])
def test_a_population_with_a_capacity_beyond_floats(capacity, small_run):
    about = small_run("rounds=1").population
    about["clients"]["client-00"]["capacity"] = capacity
    with pytest.raises(DataError, match=r"population\.json is damaged"):
        population_from(about)
    with pytest.raises(DataError, match=r"population\.json is damaged: it names no goal"):
        population_from({**about, "clients": {}, "goals": {}})


@pytest.mark.parametrize("wrong", [[{"kind": "unknown"}], [{}], [7], 3])
def test_preparations_that_are_none(wrong):
    with pytest.raises(DataError, match=r"population\.json is damaged"):
        preparations_of({"preparations": wrong, "clients": {"a": {"preparation": 0}}})


@pytest.mark.parametrize("plugins", [{"plugin_hashes": ["0" * 64]}, {"plugins": ["x" * 5000]}])
def test_plug_ins_that_are_named_without_a_file(plugins, tmp_path):
    with pytest.raises(PluginError, match="is not there any more"):
        plug_in_again(load({"rounds": 1, **plugins}), tmp_path)


def test_a_journal_with_a_number_longer_than_any_name(small_run):
    folder = small_run("rounds=1").path
    manifest = max((folder / "state").glob("checkpoint-*.json"))
    content = json.loads(manifest.read_bytes().partition(b"\n")[2])
    content["clients"]["number"] = 10**400
    text = json.dumps(content).encode()
    manifest.write_bytes(hashlib.sha256(text).hexdigest().encode() + b"\n" + text + b"\n")
    with pytest.raises(CheckpointError, match=r"clients\.number"):
        intarsia.open_run(folder).state()


def test_a_journal_longer_than_any_file(tmp_path):
    journals = Journals(tmp_path)
    journals.begin({})
    with pytest.raises(CheckpointError, match="damaged or cut short"):
        journals.read(Mark(1, 1 << 70, ""))


@pytest.fixture(scope="module")
def export(tmp_path_factory):
    from tests.conftest import SMALL

    folder = tmp_path_factory.mktemp("export")
    run = intarsia.run({**SMALL, "rounds": 1}, out=folder / "run")
    run.client("client-00").export(folder / "export")
    return folder / "export"


def test_an_export_whose_record_is_damaged(export):
    record = export / "model.json"
    text = record.read_text()
    for wrong in ("{", "[]", "{}", "\x00"):
        record.write_text(wrong)
        with pytest.raises(RunFolderError, match=r"model\.json is damaged"):
            Predictor.open(export)
    record.write_text(text)
    assert Predictor.open(export).client == "client-00"


def test_an_export_that_says_something_else_of_itself(export, tmp_path):
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    proto = onnx.load(str(export / "model.onnx"))
    (own,) = (entry for entry in proto.metadata_props if entry.key == "intarsia")
    about = json.loads(own.value)
    for wrong in ({"input": 3}, {"input": {}}, {"labels": None}, {"targets": 0.5}):
        own.value = json.dumps(about | wrong)
        (tmp_path / "x.onnx").write_bytes(proto.SerializeToString())
        with pytest.raises(ExportError, match=r"x\.onnx is damaged"):
            Predictor.open(tmp_path / "x.onnx")
    for data in (b"", b"no graph", proto.SerializeToString()[:-300]):
        (tmp_path / "x.onnx").write_bytes(data)
        with pytest.raises(IntarsiaError, match=r"x\.onnx"):
            Predictor.open(tmp_path / "x.onnx")
