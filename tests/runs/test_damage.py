"""Run folders that were damaged, and disks that are full: the same end, or an error of ours and nothing lost."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from benchmarks import damage, kills

import intarsia
from intarsia.core import CheckpointError, IntarsiaError, RunFolderError
from tests.conftest import SMALL

needs_linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs fork and /proc")


@needs_linux
def test_kills_of_every_kind_lead_to_the_same_end(tmp_path):
    """`python -m benchmarks.kills --kills 200` kills more."""
    killing = kills.Kills(tmp_path)
    chosen = (
        ("process", "debug", 0.5),
        ("writer", "debug", 0.6),
        ("worker", "local", 0.2),
        ("again", "debug", 0.7),
    )
    for number, (target, engine, moment) in enumerate(chosen):
        done = killing.done(kills.Kill(number, "fedper", engine, target, moment))
        assert done["found"] == [], done


@needs_linux
def test_a_run_that_ended_otherwise_would_be_seen(tmp_path):
    killing = kills.Kills(tmp_path)
    whole = killing.whole("fedavg", "debug")
    other = kills.Whole({**whole.result, "pool": "another"}, whole.seconds, whole.steps)
    killing._whole["fedavg", "debug"] = other
    assert killing.done(kills.Kill(0, "fedavg", "debug", "writer", 0.5))["found"] == ["pool"]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    return damage.Folders(tmp_path_factory.mktemp("damaged")).make("fedper")


def damaged(folders, when: str, name: str, tmp_path: Path, data: bytes | None = None) -> Path:
    """Return a copy of a folder in which a file holds something else, or is gone."""
    copy = tmp_path / "copy"
    shutil.copytree(folders[when], copy)
    (file,) = copy.glob(name)
    file.unlink() if data is None else file.write_bytes(data)
    return copy


@needs_linux
def test_any_damage_ends_equal_or_refused(folders):
    """`python -m benchmarks.damage` does more."""
    outcomes = [damage.damaged(folders, 1, number, "fedper") for number in range(12)]
    assert [entry for entry in outcomes if entry["found"]] == []
    assert len({entry["outcome"] for entry in outcomes}) == 2


@needs_linux
@pytest.mark.parametrize("when", ["killed", "ended"])
def test_another_digit_in_a_table_is_noticed(when, folders, tmp_path):
    """Of the last round: it is played again. Of the first: no checkpoint can be used."""
    text = (folders[when] / "metrics.jsonl").read_bytes()
    at = text.index(b'"loss": 2.') + len(b'"loss": ')
    copy = damaged(folders, when, "metrics.jsonl", tmp_path, text[:at] + b"7" + text[at + 1 :])
    with pytest.raises(
        CheckpointError, match=r"metrics\.jsonl is damaged: its first \d+ bytes are not those"
    ):
        intarsia.resume(copy)
    shutil.rmtree(copy)
    manifest = max((folders[when] / "state").glob("checkpoint-*.json"))
    length = json.loads(manifest.read_bytes().partition(b"\n")[2])["files"]["metrics"]
    copy = damaged(folders, when, "metrics.jsonl", tmp_path, text[: length - 3] + b"!" + text[length - 2 :])
    assert damage.going_on(copy, damage.result(folders["ended"])) == ("equal", [])


@needs_linux
def test_what_refuses_a_folder_leaves_no_file(folders, tmp_path):
    copy = damaged(folders, "killed", "metrics.jsonl", tmp_path)
    with pytest.raises(CheckpointError, match="lines were lost"):
        intarsia.resume(copy)
    assert not (copy / "metrics.jsonl").exists()


@needs_linux
@pytest.mark.parametrize(("data", "said"), [(b"\xff\xfe", "no text in UTF-8"), (b"rounds = [", "not TOML")])
def test_damaged_settings_are_said_and_their_copy_is_named(data, said, folders, tmp_path):
    copy = damaged(folders, "killed", "settings.toml", tmp_path, data)
    for use in (intarsia.resume, lambda path: intarsia.open_run(path).state()):
        with pytest.raises(IntarsiaError, match=said) as caught:
            use(copy)
    assert "state/settings-" in str(caught.value)


@needs_linux
def test_a_checkpoint_under_another_ones_name_is_set_aside(folders, tmp_path):
    older, newer = sorted((folders["killed"] / "state").glob("checkpoint-*.json"))[-2:]
    copy = damaged(folders, "killed", f"state/{newer.name}", tmp_path, older.read_bytes())
    assert damage.going_on(copy, damage.result(folders["ended"])) == ("equal", [])
    assert list((copy / "state").glob(f"{newer.name}.unusable-*"))


@needs_linux
def test_a_line_of_another_table_is_named(folders, tmp_path):
    copy = damaged(folders, "ended", "metrics.jsonl", tmp_path, b'{"round": 1}\n')
    with pytest.raises(RunFolderError, match=r"metrics\.jsonl, line 1 is damaged.*it names no client"):
        _ = intarsia.open_run(copy).metrics


@needs_linux
@pytest.mark.parametrize("number", [0, 7])
def test_a_disk_that_breaks_stops_the_run_and_loses_nothing(number, tmp_path):
    done = damage.broken_disk(damage.Folders(tmp_path), 0, number, "fedper")
    assert done["found"] == [], done
    assert "cannot write into" in done["said"]


@needs_linux
def test_a_clock_that_jumps_changes_nothing(tmp_path):
    assert damage.clocks(damage.Folders(tmp_path), 0)["found"] == []


SMALL_DISK = """
import os, sys, subprocess
from pathlib import Path
import intarsia
from tests.conftest import SMALL
disk, size = sys.argv[1:]
mount = lambda *options: subprocess.run(["mount", *options, disk], check=True)
mount("-t", "tmpfs", "-o", f"size={size}k", "tmpfs")
run, changes = Path(disk) / "run", ["method=fedper", "rounds=6"]
try:
    intarsia.run(SMALL, changes=changes, out=run)
    sys.exit("it fitted")
except intarsia.IntarsiaError as error:
    assert "No space left on device" in str(error), error
assert not [path for path in run.rglob(".*.draft")]
mount("-o", "remount,ro,size=64m")
before = sorted((str(p), p.read_bytes()) for p in run.rglob("*") if p.is_file())
try:
    intarsia.resume(run)
    sys.exit("it wrote where it cannot")
except intarsia.IntarsiaError as error:
    assert "Read-only file system" in str(error), error
assert before == sorted((str(p), p.read_bytes()) for p in run.rglob("*") if p.is_file())
mount("-o", "remount,rw,size=64m")
if (run / "settings.toml").exists():
    done = intarsia.resume(run)
else:
    done = intarsia.run(SMALL, changes=changes, out=run)
print(len(done.metrics), (run / "metrics.jsonl").read_bytes() == Path("whole/metrics.jsonl").read_bytes())
"""


def can_mount() -> bool:
    tools = shutil.which("unshare") and shutil.which("mount")
    return bool(tools) and subprocess.run(["unshare", "-rm", "true"], capture_output=True).returncode == 0


@pytest.mark.skipif(not can_mount(), reason="needs a disk of its own: unshare -rm and mount")
@pytest.mark.parametrize("size", [random.Random(2).randint(100, 180)])
def test_a_full_and_then_read_only_disk_of_its_own(size, tmp_path):
    intarsia.run(SMALL, changes=["method=fedper", "rounds=6"], out=tmp_path / "whole")
    (tmp_path / "disk").mkdir()
    root = str(Path(__file__).parents[2])
    done = subprocess.run(
        [
            "unshare",
            "-rm",
            sys.executable,
            "-W",
            "ignore",
            "-c",
            SMALL_DISK,
            str(tmp_path / "disk"),
            str(size),
        ],
        **{"cwd": tmp_path, "capture_output": True, "text": True, "check": False},
        env={**os.environ, "PYTHONPATH": root, "INTARSIA_CACHE": str(tmp_path / "cache")},
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[-1] == "True"
