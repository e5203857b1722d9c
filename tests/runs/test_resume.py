"""Stopping at any moment and going on gives exactly the run that was never stopped."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import tomli_w

import intarsia
from intarsia.blocks import BlockStore
from intarsia.core import CheckpointError, RunFolderError
from intarsia.methods.fedper import FedPer
from intarsia.runs import Journals, RunFolder
from intarsia.runs.tables import Tables
from tests.conftest import SMALL

TABLES = ("metrics.jsonl", "traffic.jsonl", "events.jsonl")
LONG = {
    **SMALL,
    "rounds": 8,
    "population": {"name": "digits", "clients": 20, "cohorts": 5, "validation": 0.2},
}

DRAFTS = shutil.ignore_patterns(".*")
"""Files that are being written while a folder is copied."""


def start(settings: Path, out: Path, *more: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "intarsia", "run", str(settings), "--out", str(out), *more]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def children(pid: int) -> list[int]:
    try:
        return [int(p) for p in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in ("Z", "X")
    except OSError:
        return False


def wait_for(condition, seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.005)


def text_of(table: Path) -> bytes:
    packed = table.with_name(f"{table.name}.gz")
    return table.read_bytes() if table.exists() else gzip.decompress(packed.read_bytes())


def same_result(one: Path, other: Path) -> None:
    for table in TABLES:
        assert text_of(one / table) == text_of(other / table), table
    first, second = (intarsia.open_run(path).summary for path in (one, other))
    for key in (
        "accuracy",
        "bytes",
        "evaluation_bytes",
        "rounds",
        "finished",
        "best_on_validation",
        "failed",
    ):
        assert first.get(key) == second.get(key)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs /proc")
@pytest.mark.parametrize(("method", "after", "every"), [("fedper", 2, 1), ("fedavg", 5, 3)])
def test_kill_9_in_mid_round_then_resume(method, after, every, tmp_path):
    settings = tmp_path / "settings.toml"
    settings.write_text(tomli_w.dumps({**LONG, "method": method, "checkpoints": {"every": every}}))
    whole = intarsia.run(settings, out=tmp_path / "whole")
    shared_before = set(os.listdir("/dev/shm"))
    process = start(settings, tmp_path / "killed", "--engine", "local", "--workers", "2")
    metrics = tmp_path / "killed" / "metrics.jsonl"
    wait_for(lambda: metrics.exists() and f'"round": {after},' in metrics.read_text())
    time.sleep(random.Random(after).uniform(0, 0.05))
    workers = children(process.pid)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert len(workers) == 2
    wait_for(lambda: not any(alive(pid) for pid in workers), 10)
    assert set(os.listdir("/dev/shm")) <= shared_before
    assert not (tmp_path / "killed" / "summary.json").exists()
    with metrics.open("a") as file:
        file.write('{"round": 99, "cut in the mid')
    resumed = intarsia.resume(tmp_path / "killed")
    same_result(whole.path, resumed.path)


def test_every_checkpoint_leads_to_the_same_end(tmp_path):
    """The state after every round, as a kill would leave it, goes on to the same bits."""
    folders = []

    class Copying(intarsia.Observer):
        def round_done(self, report: intarsia.RoundReport) -> None:
            copy = tmp_path / f"after-{report.round}"
            shutil.copytree(tmp_path / "whole", copy, ignore=DRAFTS)
            folders.append(copy)

    changes = ["rounds=4", "method=fedper", "sampling.fraction=0.5"]
    whole = intarsia.run(LONG, changes=changes, out=tmp_path / "whole", observer=Copying())
    for folder in folders:
        same_result(whole.path, intarsia.resume(folder).path)


def test_a_kill_at_any_moment_of_saving_leads_to_the_same_end(tmp_path, monkeypatch):
    """Checkpoints are written beside the next round: the folder is copied before and after every step of that."""
    copies: list[Path] = []

    def copying(step):
        def stepping(*arguments, **more):
            keep_a_copy()
            result = step(*arguments, **more)
            keep_a_copy()
            return result

        return stepping

    def keep_a_copy() -> None:
        if threading.current_thread() is not threading.main_thread():
            copies.append(tmp_path / f"copy-{len(copies)}")
            shutil.copytree(tmp_path / "whole", copies[-1], ignore=DRAFTS)

    for owner, name in ((os, "replace"), (Journals, "_add"), (BlockStore, "sync")):
        monkeypatch.setattr(owner, name, copying(getattr(owner, name)))
    changes = ["rounds=2", "method=fedper", "sampling.fraction=0.5", "checkpoints.keep=1"]
    whole = intarsia.run(LONG, changes=changes, out=tmp_path / "whole")
    monkeypatch.undo()
    assert len(copies) > 12
    for folder in copies:
        same_result(whole.path, intarsia.resume(folder).path)


def test_a_checkpoint_is_written_beside_the_next_round_and_before_the_one_after(
    small_run, tmp_path, monkeypatch
):
    real, begun, late = RunFolder._write, {r: threading.Event() for r in range(5)}, []

    def slow(self, state, *rest):
        if state.round == 0:
            begun[1].wait(0.5)  # no round begins before there is something to go back to
        elif state.round < 3:
            assert begun[state.round + 1].wait(30), "the next round waits for the checkpoint"
        return real(self, state, *rest)

    class Watching(intarsia.Observer):
        def exchange_started(self, round: int, name: str, clients: int) -> None:
            manifests = [p.name for p in (tmp_path / "run" / "state").glob("checkpoint-*.json")]
            if f"checkpoint-{max(round - 2, 0):06d}.json" not in manifests:
                late.append(round)
            begun[round].set()

    monkeypatch.setattr(RunFolder, "_write", slow)
    run = small_run(observer=Watching())
    assert not late
    assert newest(run).name == "checkpoint-000003.json"


def test_a_checkpoint_that_cannot_be_written_stops_the_run(small_run, tmp_path, monkeypatch):
    """The disk is full in the background: the run says so; when there is room again, it goes on to the same end."""
    whole = small_run(out="whole")
    real, first = os.fsync, tmp_path / "full" / "state" / "checkpoint-000000.json"

    def full(file: int) -> None:
        if first.exists():
            raise OSError(28, "No space left on device")
        real(file)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(
        RunFolderError,
        match=r"cannot write into .*full: .*full/state.*: No space left.*intarsia resume .*full",
    ):
        small_run(out="full")
    monkeypatch.undo()
    same_result(whole.path, intarsia.resume(tmp_path / "full").path)


def test_one_checkpoint_that_could_not_be_written_leaves_no_gap(small_run, tmp_path, monkeypatch):
    """It fails once: the run stops, and what it saves on the way out has what that one should have had."""
    changes = ("method=fedper", "rounds=6", "sampling.clients=2")
    whole = small_run(*changes, out="whole")
    real, second, failed = os.fsync, tmp_path / "cut" / "state" / "checkpoint-000002.json", []

    def once(file: int) -> None:
        if second.exists() and not failed:
            failed.append(file)
            raise OSError(5, "Input/output error")
        real(file)

    monkeypatch.setattr(os, "fsync", once)
    with pytest.raises(intarsia.IntarsiaError, match="Input/output error"):
        small_run(*changes, out="cut")
    monkeypatch.undo()
    cut = intarsia.open_run(tmp_path / "cut")
    state = cut.state()
    assert state.round == cut.summary["rounds"] >= 2
    assert {m["client"] for m in cut.metrics if m["split"] == "train"} == set(state.clients)
    same_result(whole.path, intarsia.resume(cut.path).path)


def seal(path: Path, manifest: dict) -> None:
    text = json.dumps(manifest)
    path.write_text(f"{hashlib.sha256(text.encode()).hexdigest()}\n{text}\n")


def content_of(path: Path) -> dict:
    return json.loads(path.read_bytes().partition(b"\n")[2])


@pytest.mark.parametrize("number", [1, 2, 3, 99])
def test_another_format_is_refused_and_left(number, small_run):
    run = small_run()
    path = newest(run)
    seal(path, {**content_of(path), "format": number})
    with pytest.raises(CheckpointError, match=f"has format {number}, this version reads 4"):
        intarsia.resume(run.path)
    assert path.exists()


def blocks_of(folder: Path) -> dict[Path, set[str]]:
    return BlockStore(folder / "state" / "blocks").files()


def journal_of(run: Path, copy: str = "") -> Path:
    """Return the newest journal, or its copy."""
    numbers = [int(path.stem.partition("-")[2]) for path in (run / "state").glob("clients-*[0-9].jsonl")]
    return run / "state" / f"clients-{max(numbers)}{copy}.jsonl"


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_one_damaged_byte_of_the_journal_spoils_nothing(small_run, tmp_path):
    """Half of the clients take part: most records lie in lines that all checkpoints need."""
    whole = small_run("method=fedper", "sampling.fraction=0.5", "rounds=4", out="whole")
    records = dict(whole.state().clients)
    length = len(journal_of(whole.path).read_bytes())
    for copy in ("", ".copy"):
        path = journal_of(whole.path, copy)
        text = path.read_bytes()
        for at in range(0, length, 37):
            path.write_bytes(text[:at] + bytes([text[at] ^ 4]) + text[at + 1 :])
            assert dict(whole.state().clients) == records
        path.write_bytes(text)
    shutil.copytree(whole.path, tmp_path / "cut")
    newest(intarsia.open_run(tmp_path / "cut")).unlink()
    journal_of(tmp_path / "cut").write_bytes(b"")
    same_result(whole.path, intarsia.resume(tmp_path / "cut").path)
    assert journal_of(tmp_path / "cut").name == "clients-2.jsonl", "the damaged journal is still added to"
    assert journal_of(tmp_path / "cut").read_bytes() == journal_of(tmp_path / "cut", ".copy").read_bytes()


def test_records_that_were_lost_twice_are_noticed(small_run, tmp_path):
    """The end is cut in both files: the checkpoint before is whole. The beginning is damaged in both: none is."""
    whole = small_run("method=fedper", out="whole")
    text = journal_of(whole.path).read_bytes()
    for damage, left in (("end", text[:-9]), ("beginning", b"[" + text[1:])):
        folder = tmp_path / damage
        shutil.copytree(whole.path, folder)
        for copy in ("", ".copy"):
            journal_of(folder, copy).write_bytes(left)
        if damage == "end":
            same_result(whole.path, intarsia.resume(folder).path)
            continue
        before = contents(folder)
        for _ in range(2):
            with pytest.raises(
                CheckpointError,
                match=r"no checkpoint can be used.*clients-1\.jsonl is damaged .*so is its copy",
            ):
                intarsia.resume(folder)
            assert contents(folder) == before


def test_a_journal_begins_anew_when_changes_outgrow_it(small_run, monkeypatch):
    from intarsia.runs import journal

    monkeypatch.setattr(journal, "SLACK", 0)
    run = small_run("method=fedper", "rounds=14", "sampling.clients=2")
    numbers = [
        content_of(path)["clients"]["number"] for path in (run.path / "state").glob("checkpoint-*.json")
    ]
    assert max(numbers) > 3
    there = {path.name for path in (run.path / "state").glob("clients-*")}
    assert there == {f"clients-{n}{copy}.jsonl" for n in numbers for copy in ("", ".copy")}
    trained = {m["client"] for m in run.metrics if m["split"] == "train"}
    assert set(run.state().clients) == trained


def test_only_what_checkpoints_name_stays_on_disk(tmp_path):
    """Own blocks change in every round, and several times between two checkpoints."""
    counts = []

    class Counting(intarsia.Observer):
        def exchange_started(self, round: int, name: str, clients: int) -> None:
            if name != "evaluate":
                counts.append(len(set().union(*blocks_of(tmp_path / "r").values())))

    changes = [
        "rounds=12",
        "method=local",
        "checkpoints.every=2",
        "checkpoints.keep=1",
        "evaluation.every=12",
    ]
    population = {"population": {"name": "digits", "clients": 4, "cohorts": 2}}
    intarsia.run({**LONG, **population}, changes=changes, out=tmp_path / "r", observer=Counting())
    start = len(set().union(*blocks_of(tmp_path / "r").values())) - 4
    # What the models started from; 4 clients' blocks in two checkpoints (until the newer one is on disk), and those of
    # the round between.
    assert max(counts) == start + 4 * 3


def test_resume_before_the_first_checkpoint_starts_from_the_beginning(small_run, tmp_path):
    whole = small_run(out="whole")
    folder = tmp_path / "early"
    folder.mkdir()
    shutil.copy(whole.path / "settings.toml", folder)
    assert (intarsia.resume(folder).path / "metrics.jsonl").read_bytes() == (
        whole.path / "metrics.jsonl"
    ).read_bytes()


def test_resume_of_a_finished_run_changes_nothing(small_run):
    run = small_run()
    before = {p: p.read_bytes() for p in run.path.rglob("*") if p.is_file() and p.name != "summary.json"}
    accuracy = run.summary["accuracy"]
    intarsia.resume(run.path)
    assert run.summary["accuracy"] == accuracy
    assert before == {
        p: p.read_bytes() for p in run.path.rglob("*") if p.is_file() and p.name != "summary.json"
    }


def newest(run: intarsia.Run) -> Path:
    return sorted((run.path / "state").glob("checkpoint-*.json"))[-1]


def test_a_truncated_checkpoint_falls_back_to_the_one_before(small_run, tmp_path):
    whole = small_run(out="whole")
    shutil.copytree(whole.path, tmp_path / "damaged")
    damaged = intarsia.open_run(tmp_path / "damaged")
    path = newest(damaged)
    path.write_bytes(path.read_bytes()[:-40])
    intarsia.resume(damaged.path)
    assert (damaged.path / "metrics.jsonl").read_bytes() == (whole.path / "metrics.jsonl").read_bytes()


def test_a_damaged_block_is_named(small_run):
    run = small_run("checkpoints.keep=1", "sharing.by=", 'population.generations=["8x8"]')
    version = run.state().pool.version(intarsia.Address("model", "all"))
    (path,) = (run.path / "state" / "blocks").glob(f"{version}.safetensors")
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(bytes(data))
    before = contents(run.path)
    for _ in range(2):
        with pytest.raises(CheckpointError, match=rf"(?s){path.name} is damaged.*Nothing was changed"):
            intarsia.resume(run.path)
        assert contents(run.path) == before


def test_an_emptied_block_is_written_again(tmp_path):
    """A power cut may leave empty files: resume goes back a round, and the block is whole afterwards."""
    whole = intarsia.run(LONG, changes=["rounds=4", "method=fedper"], out=tmp_path / "whole")
    shutil.copytree(whole.path, tmp_path / "cut")
    cut = intarsia.open_run(tmp_path / "cut")
    head = cut.state().clients["client-03"].state["private"]["head"]
    (path,) = (path for path, held in blocks_of(cut.path).items() if head in held)
    path.write_bytes(b"")
    intarsia.resume(cut.path)
    same_result(whole.path, cut.path)
    cut.client("client-03").model()


@pytest.mark.parametrize("damage", [b"", b"\xff\xfe\x00", b"{}"])
def test_a_damaged_manifest_is_passed_over(damage, tmp_path):
    whole = intarsia.run(LONG, changes=["rounds=4", "checkpoints.every=2"], out=tmp_path / "whole")
    shutil.copytree(whole.path, tmp_path / "cut")
    newest(intarsia.open_run(tmp_path / "cut")).write_bytes(damage)
    same_result(whole.path, intarsia.resume(tmp_path / "cut").path)


@pytest.mark.parametrize("moment", ["append", "lengths", "checkpoint"])
def test_interrupting_a_commit_loses_and_doubles_nothing(moment, small_run, tmp_path, monkeypatch):
    owner = Tables if moment == "lengths" else RunFolder
    whole = small_run(out="whole")
    real, calls = getattr(owner, moment), []

    def interrupted(self, *arguments):
        calls.append(moment)
        result = real(self, *arguments)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return result

    monkeypatch.setattr(owner, moment, interrupted)
    with pytest.raises(KeyboardInterrupt):
        small_run(out="stopped")
    monkeypatch.undo()
    intarsia.resume(tmp_path / "stopped")
    assert (tmp_path / "stopped" / "metrics.jsonl").read_bytes() == (
        whole.path / "metrics.jsonl"
    ).read_bytes()


def test_late_clients_start_from_the_runs_weights_not_from_the_model_given_now(tmp_path):
    import torch

    def network(seed: int):
        torch.manual_seed(seed)
        return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 8), torch.nn.Linear(8, 10))

    changes = [
        "method=fedper",
        "sampling.clients=1",
        "rounds=6",
        'population.generations=["8x8"]',
        "sharing.by=",
    ]
    whole = intarsia.run(SMALL, changes=changes, model=network(0), out=tmp_path / "whole")

    class Stop(intarsia.Observer):
        def exchange_started(self, round: int, name: str, clients: int) -> None:
            if round == 3:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        intarsia.run(SMALL, changes=changes, model=network(0), out=tmp_path / "cut", observer=Stop())
    intarsia.resume(tmp_path / "cut", model=network(1))
    assert (tmp_path / "cut" / "metrics.jsonl").read_bytes() == (whole.path / "metrics.jsonl").read_bytes()
    other = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))
    with pytest.raises(intarsia.IntarsiaError):
        intarsia.resume(tmp_path / "cut", model=other)


def test_other_data_than_before_is_refused(tmp_path):
    import torch

    def data(shift: float):
        x, y = torch.arange(30.0).reshape(10, 3) + shift, torch.arange(10) % 2
        return {"a": {"train": (x, y), "test": (x, y)}}

    run = intarsia.run({"rounds": 1, "engine": {"name": "debug"}}, data=data(0), out=tmp_path / "r")
    with pytest.raises(intarsia.IntarsiaError, match="the data is not the same"):
        intarsia.resume(run.path, data=data(1))


def test_resume_with_parts_of_ones_own_and_another_engine(small_run, tmp_path):
    from intarsia.training import Objective

    @intarsia.part
    class Twice(Objective):
        """Twice the loss; without a name of its own."""

        def value(self, at, batch, outputs, fit):
            return 2 * fit

    @intarsia.part
    class Mine(intarsia.Method):
        """FedAvg with it."""

        name = "mine"
        title = "Mine"

    class Stop(intarsia.Observer):
        def exchange_started(self, round: int, name: str, clients: int) -> None:
            if round == 2:
                raise KeyboardInterrupt

    method = Mine(objective=Twice())
    whole = small_run("sharing.by=device", method=method, out="whole")
    with pytest.raises(KeyboardInterrupt):
        small_run("sharing.by=device", method=method, out="cut", observer=Stop())
    done = intarsia.resume(tmp_path / "cut", method=method, engine={"name": "local", "workers": 2})
    assert done.metrics == whole.metrics
    assert done.metrics != small_run(out="plain").metrics
    assert done.settings.sharing["by"] == "device"
    with pytest.raises(intarsia.IntarsiaError, match="'fedper' is given, but the settings are about 'mine'"):
        intarsia.resume(tmp_path / "cut", method=FedPer())


def test_a_foreign_checkpoint_is_refused(small_run, tmp_path):
    one, other = small_run(out="one"), small_run("seed=5", out="other")
    shutil.rmtree(one.path / "state")
    shutil.copytree(other.path / "state", one.path / "state")
    with pytest.raises(CheckpointError, match="belongs to a run with other settings"):
        intarsia.resume(one.path)


def test_lost_lines_are_noticed(small_run):
    run = small_run()
    (run.path / "metrics.jsonl").write_bytes(b"")
    with pytest.raises(CheckpointError, match="lines were lost"):
        intarsia.resume(run.path)


def test_old_checkpoints_and_blocks_are_removed(small_run):
    run = small_run("rounds=6", "checkpoints.keep=2", "method=fedper")
    assert len(list((run.path / "state").glob("checkpoint-*.json"))) == 2
    # Two rounds of one base per generation and a head for each of the 8 clients; and what they started from.
    held = blocks_of(run.path)
    assert len(set().union(*held.values())) == 2 * (2 + 8) + 3
    assert sum(map(len, held.values())) == 2 * (2 + 8) + 3
    assert len(held) < 2 * 2 + 3 + 4


def test_the_best_round_on_validation_is_kept(tmp_path):
    run = intarsia.run(LONG, changes=["training.lr=0.5", "checkpoints.keep=1"], out=tmp_path / "r")
    best = run.summary["best_on_validation"]
    means = {}
    for r in range(1, 9):
        rows = [m["accuracy"] for m in run.metrics if m["round"] == r and m["split"] == "validation"]
        means[r] = sum(rows) / len(rows)
    assert best["validation"] == pytest.approx(max(means.values()))
    assert means[best["round"]] == pytest.approx(best["validation"])
    test = [m["accuracy"] for m in run.metrics if m["round"] == best["round"] and m["split"] == "test"]
    assert best["accuracy"]["mean"] == pytest.approx(sum(test) / len(test))
    run.client("client-00").model(round=best["round"])


def test_a_used_folder_is_refused(small_run):
    run = small_run()
    before = sorted(p.name for p in run.path.iterdir())
    with pytest.raises(RunFolderError, match=r"already used.*resume"):
        small_run()
    assert before == sorted(p.name for p in run.path.iterdir())


def test_a_folder_in_use_is_refused(small_run, tmp_path):
    class Nosy(intarsia.Observer):
        said = ""

        def round_done(self, report: intarsia.RoundReport) -> None:
            with pytest.raises(RunFolderError, match="in use by a run that has not ended") as caught:
                intarsia.resume(tmp_path / "run")
            self.said = str(caught.value)

    observer = Nosy()
    small_run("rounds=1", observer=observer)
    assert observer.said


def test_an_unwritable_folder_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RunFolderError, match="cannot write into"):
        intarsia.run(SMALL, out=tmp_path / "file" / "run")
    with pytest.raises(RunFolderError, match="already used"):
        intarsia.run(SMALL, out=tmp_path / "file")


def test_a_folder_without_a_run_is_refused(tmp_path):
    with pytest.raises(RunFolderError, match=r"no settings\.toml"):
        intarsia.resume(tmp_path)
    with pytest.raises(RunFolderError, match=r"no settings\.toml"):
        intarsia.open_run(tmp_path / "nowhere")


def test_an_interrupted_write_leaves_the_file_as_it_was(tmp_path, monkeypatch):
    from intarsia.core import write_atomically

    path = tmp_path / "file"
    write_atomically(path, b"whole")

    def fail(*_):
        raise OSError("pulled the plug")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="plug"):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"whole"
    assert list(tmp_path.iterdir()) == [path]


def test_interrupting_saves_the_last_whole_round(small_run, tmp_path):
    whole = small_run(out="whole")

    class Impatient(intarsia.Observer):
        def exchange_started(self, round: int, name: str, clients: int) -> None:
            if (round, name) == (3, "evaluate"):
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        small_run("checkpoints.every=3", out="stopped", observer=Impatient())
    stopped = intarsia.open_run(tmp_path / "stopped")
    assert stopped.summary["rounds"] == 2
    intarsia.resume(stopped.path)
    assert stopped.metrics == whole.metrics
