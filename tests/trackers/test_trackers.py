"""Trackers get a run's figures once a round, go on where they were, and never stop a run."""

from __future__ import annotations

import json
import os
import socket
import sqlite3
import struct
import warnings
from pathlib import Path

import pytest
from typer.testing import CliRunner

import intarsia
from intarsia.cli.app import app
from intarsia.core import SettingsError
from intarsia.trackers import NAMES, trackers_of
from tests.conftest import SMALL

CURVES = ("accuracy/mean", "accuracy/p10", "accuracy/worst", "loss/mean", "bytes/up", "bytes/down")
COUNTS = ("seconds/total", "clients/failed", "clients/refused")


class StopAfter(intarsia.Observer):
    def __init__(self, round):
        self.round, self.now = round, 0

    def round_done(self, report):
        self.now = report.round

    def wants_stop(self):
        return self.now == self.round


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Stores of trackers are in a folder of the test."""
    folder = tmp_path_factory.mktemp("tracked")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{folder}/mlflow.db")
        for name in ("WANDB_MODE", "WANDB_DIR", "MLFLOW_DISABLE_TELEMETRY", "WANDB_ERROR_REPORTING"):
            patch.delenv(name, raising=False)
        patch.chdir(folder)
        yield folder


@pytest.fixture(scope="module")
def called():
    """Where this process has connected to."""
    found, connect = [], socket.socket.connect

    def noted(self, address):
        found.append(address)
        return connect(self, address)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket.socket, "connect", noted)
        yield found


@pytest.fixture(scope="module")
def run(place, called):
    """A run that was stopped after two of its three rounds, and went on."""
    out = place / "run"
    intarsia.run(SMALL, out=out, observer=[StopAfter(2), intarsia.Observer()], track=NAMES)
    told = json.loads((out / "trackers.json").read_text())
    assert {name: about["round"] for name, about in told.items()} == dict.fromkeys(NAMES, 2)
    return intarsia.resume(out, track=NAMES)


def expected(run):
    """The mean accuracy of every round, by its rows."""
    return [
        pytest.approx(sum(own) / len(own))
        for round in (1, 2, 3)
        if (own := [r["accuracy"] for r in run.metrics if r["split"] == "test" and r["round"] == round])
    ]


def test_tensorboard_has_every_round_once(run):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(run.path / "tensorboard")).Reload()
    for name in (*CURVES, *COUNTS):
        assert [point.step for point in events.Scalars(name)] == [1, 2, 3]
    assert [point.value for point in events.Scalars("accuracy/mean")] == expected(run)
    assert events.Scalars("bytes/up")[-1].value == run.summary["bytes"]["up"]
    assert [point.step for point in events.Scalars("summary/accuracy/mean")] == [3]
    texts = {tag: _text(events, tag) for tag in ("settings", "verdict", "warnings")}
    assert 'name = "small"' in texts["settings"]
    assert "| accuracy | " in texts["verdict"]
    assert run.summary["judged"]["warnings"][0]["message"] in texts["warnings"]


def _text(events, tag):
    (event,) = events.Tensors(f"{tag}/text_summary")
    return event.tensor_proto.string_val[0].decode()


def test_mlflow_has_every_round_once(run):
    from mlflow import MlflowClient

    client = MlflowClient()
    (found,) = client.search_runs([client.get_experiment_by_name("intarsia").experiment_id])
    assert found.info.status == "FINISHED"
    assert found.info.run_name.endswith("/run")
    assert found.data.params["training.lr"] == "0.1"
    for name in (*CURVES, *COUNTS):
        assert [point.step for point in client.get_metric_history(found.info.run_id, name)] == [1, 2, 3]
    history = client.get_metric_history(found.info.run_id, "accuracy/mean")
    assert [point.value for point in history] == expected(run)
    judged = run.summary["judged"]
    assert found.data.metrics["summary/judged/metrics/auc/mean"] == judged["metrics"]["auc"]["mean"]
    assert "| accuracy | " in found.data.tags["verdict"]
    assert judged["warnings"][0]["message"] in found.data.tags["warnings"]


def test_wandb_stays_here_and_has_every_round_once(run, called):
    first, second = sorted((run.path / "wandb").glob("offline-run-*/run-*.wandb"))
    assert first.name == second.name
    config, begun = _wandb(first)
    assert config["training.lr"] == 0.1
    assert [row["_step"] for row in begun] == [1, 2]
    _, later = _wandb(second)
    assert [row["_step"] for row in later] == [3]
    assert [row["accuracy/mean"] for row in (*begun, *later)] == expected(run)
    assert os.environ["WANDB_ERROR_REPORTING"] == "false"
    assert os.environ["MLFLOW_DISABLE_TELEMETRY"] == "true"
    outside = [
        to for to in called if isinstance(to, tuple) and to[0] not in ("127.0.0.1", "::1", "localhost")
    ]
    assert not outside


def _wandb(path):
    """The configuration and the history of a file that `wandb sync` would upload."""
    from wandb.proto.wandb_internal_pb2 import Record

    config, rows = {}, []
    for data in _records(path.read_bytes()):
        record = Record.FromString(data)
        config |= {i.key: json.loads(i.value_json) for i in record.run.config.update}
        items = {i.key or ".".join(i.nested_key): json.loads(i.value_json) for i in record.history.item}
        rows += [items] if items else []
    return config, rows


def _records(data, block=1 << 15):
    """The records of a log as LevelDB writes them: in pieces of crc, length, kind (1 whole, 2 first, 4 last)."""
    place, whole = 7, b""
    while place + 7 <= len(data):
        if block - place % block < 7:
            place += block - place % block
        _, length, kind = struct.unpack("<IHB", data[place : place + 7])
        whole += data[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):
            yield whole
            whole = b""


class Spoiler(intarsia.Observer):
    """Takes the place of one tracker before it begins, and the other's table after the first round."""

    def __init__(self, database):
        self.database = database

    def opened(self, folder):
        (folder / "tensorboard").write_text("in the way")

    def round_done(self, report):
        if report.round == 1:
            with sqlite3.connect(self.database) as store:
                store.execute("DROP TABLE latest_metrics")


def test_a_tracker_that_fails_is_left_out_and_the_run_ends_well(run, place, monkeypatch):
    broken = place / "broken.db"
    with sqlite3.connect(place / "mlflow.db") as there, sqlite3.connect(broken) as copy:
        there.backup(copy)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{broken}")
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        done = intarsia.run(
            SMALL, out=place / "spoilt", observer=Spoiler(broken), track=["tensorboard", "mlflow"]
        )
    assert done.summary["finished"]
    ours = [str(w.message) for w in told if "is told no more" in str(w.message)]
    assert [text.split(" is")[0] for text in ours] == ["TensorBoard", "MLflow"]
    assert str(place / "spoilt") in ours[0]
    assert "latest_metrics" in ours[1]
    assert [r["accuracy"] for r in done.metrics] == [r["accuracy"] for r in run.metrics]


class Elsewhere(intarsia.Tracker):
    title, package, extra = "Elsewhere", "no_such_package", "elsewhere"

    def begin(self, run):
        return run.name

    def log(self, round, figures):
        pass

    def end(self, result):
        pass


def test_what_cannot_work_is_said_before_the_run(tmp_path):
    with pytest.raises(SettingsError, match=r"Elsewhere needs .* pip install 'intarsia\[elsewhere\]'"):
        Elsewhere()
    with pytest.raises(SettingsError, match="did you mean 'mlflow'"):
        trackers_of(["mlfow"])
    with pytest.raises(SettingsError, match="give a list of names"):
        intarsia.run(SMALL, out=tmp_path / "run", track="wandb")
    with pytest.raises(SettingsError, match="or a list of them, not"):
        intarsia.run(SMALL, out=tmp_path / "run", observer=[print])
    assert not (tmp_path / "run").exists()


def test_the_command_line_names_trackers(tmp_path):
    settings = tmp_path / "small.toml"
    settings.write_text(intarsia.load(SMALL, ["rounds=1"]).to_toml())
    command = ["run", str(settings), "--out", str(tmp_path / "run"), "--track", "tensorboard"]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.output
    assert "round 1/1" in done.output
    assert list(Path(tmp_path / "run" / "tensorboard").glob("events.out.*"))
