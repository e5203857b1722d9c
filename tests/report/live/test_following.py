"""How runs stand, as their folders tell it while they grow."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from intarsia.core import RunFolderError
from intarsia.report.live import following, tails
from intarsia.report.live.folders import Folders, Found
from intarsia.report.live.following import Follower
from intarsia.report.live.tails import OtherTable, Tail
from intarsia.runs import is_locked, lock

CLIENTS = ("a", "b", "c", "d")


class Folder:
    """A run folder whose lines are written by hand."""

    def __init__(self, path: Path, **settings: Any) -> None:
        (path / "state").mkdir(parents=True)
        told = {"rounds": 10, "seed": 3, **settings}
        lines = [f"{key} = {json.dumps(value)}" for key, value in told.items()]
        (path / "settings.toml").write_text("\n".join([*lines, "[method]", 'name = "fedavg"', ""]))
        self.path = path

    def add(self, table: str, *rows: dict[str, Any]) -> None:
        with (self.path / f"{table}.jsonl").open("a") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)

    def play(self, round: int, lost: dict[str, str] | None = None, accuracy: float = 0.5) -> None:
        """Write a round in which some clients' updates are lost."""
        for name in CLIENTS:
            about = {"round": round, "client": name, "n": 10, "correct": 5, "loss": 1.0}
            if name not in (lost or {}):
                self.add("metrics", {**about, "split": "train", "stage": "training", "accuracy": 0.9})
            self.add("metrics", {**about, "split": "test", "stage": "own", "accuracy": accuracy})
        for name, kind in (lost or {}).items():
            failure = {"kind": kind, "client": name, "message": f"client '{name}': late"}
            self.add("events", {"round": round, "exchange": "train", **failure})
        sent = {"round": round, "purpose": "train", "client": "site-0", "block": "", "bytes": 100}
        self.add("traffic", sent, {**sent, "purpose": "evaluate"})
        self.add("seconds", {"round": round, "total": 2.0})

    def follow(self) -> Follower:
        return Follower(Found("0" * 12, "run", self.path))


def stands(follower: Follower) -> dict[str, Any]:
    return follower.refresh(time.monotonic() + 5)


def test_a_run_that_goes_on_tells_how_far_it_is_and_who_counts(tmp_path):
    folder = Folder(tmp_path / "run")
    follower = folder.follow()
    with lock(folder.path / "state" / "lock", "taken"):
        assert stands(follower)["state"] == "running"
        folder.play(1)
        folder.play(2, {"b": "failed", "d": "refused"}, accuracy=0.75)
        now = {"round": 3, "exchange": "train", "asked": 4, "count": 1, "answered": ["a"], "since": 1}
        (folder.path / "now.json").write_text(json.dumps(now))
        got = stands(follower)
        assert (got["round"], got["rounds"], got["method"], got["seed"]) == (2, 10, "FedAvg", 3)
        assert (got["counted"], got["asked"], got["missing"]) == (2, 4, ["b", "d"])
        assert (got["failed"], got["refused"], got["losing"]) == (1, 1, [["b", 1], ["d", 1]])
        assert (got["accuracy"], got["worst"], got["bytes"]) == (0.75, 0.75, 200)
        assert got["curve"] == [[1, 0.5], [2, 0.75]]
        assert 10 < got["left"] <= 16
        assert (got["now"]["answered"], got["now"]["waiting"]) == (1, ["b", "c", "d"])
        folder.add(
            "metrics", {"round": 3, "client": "a", "split": "test", "stage": "own", "accuracy": 0, "loss": 9}
        )
        assert stands(follower)["accuracy"] == 0.75  # round 3 is not whole yet
    assert stands(follower)["left"] is None


def test_states_are_told_apart(tmp_path):
    folder = Folder(tmp_path / "run")
    folder.play(1)
    follower = folder.follow()
    got = stands(follower)
    assert got["state"] == "failed"
    assert f"killed, or it crashed; to go on: intarsia resume {folder.path}" in got["why"]
    (folder.path / "summary.json").write_text('{"finished": false}')
    assert stands(follower)["state"] == "stopped"
    folder.add("events", {"round": 2, "kind": "failed", "client": "a", "message": "out of memory"})
    got = stands(follower)
    assert (got["state"], "round 2: out of memory" in got["why"]) == ("failed", True)
    (folder.path / "summary.json").write_text(
        '{"finished": true, "rounds": 10, "failed": 1, "bytes": {"up": 3, "down": 4}}'
    )
    got = stands(follower)
    assert (got["state"], got["round"], got["bytes"], got["failed"]) == ("finished", 10, 7, 1)


def test_looking_takes_no_lock_from_a_run(tmp_path):
    path = tmp_path / "lock"
    assert is_locked(path) is False
    assert not path.exists()
    with lock(path, "taken"):
        assert is_locked(path) is True
        with pytest.raises(RunFolderError, match="taken"):
            lock(path, "taken")
    assert is_locked(path) is False
    with lock(path, "taken"):
        pass


def test_nothing_is_read_twice_and_a_table_that_was_cut_back_is_read_anew(tmp_path, monkeypatch):
    monkeypatch.setattr(tails, "PIECE", 100)
    folder = Folder(tmp_path / "run")
    tail = Tail(folder.path / "seconds.jsonl")
    assert tail.next() == []
    folder.add("seconds", *({"round": r, "total": 1.0} for r in range(1, 9)))
    first, second = tail.next(), tail.next()
    assert [row["round"] for row in first + second] == list(range(1, len(first + second) + 1))
    assert first
    assert second
    while tail.next():
        pass
    with (folder.path / "seconds.jsonl").open("a") as file:
        file.write('{"round": 9')
    assert tail.next() == []
    text = (folder.path / "seconds.jsonl").read_text().splitlines(keepends=True)[:3]
    (folder.path / "seconds.jsonl").write_text("".join(text) + '{"round": 4, "total": 7.0}\n' * 20)
    with pytest.raises(OtherTable):
        tail.next()
    follower = folder.follow()
    assert stands(follower)["round"] == 4
    (folder.path / "seconds.jsonl").write_text("")
    stands(follower)
    assert stands(follower)["round"] == 0


def test_damaged_lines_and_files_are_named_and_the_rest_is_shown(tmp_path):
    folder = Folder(tmp_path / "run")
    folder.play(1)
    for table in ("metrics", "events", "seconds", "traffic"):
        with (folder.path / f"{table}.jsonl").open("a") as file:
            file.write(
                '{"round": "x"}\n[1]\n{broken\n\xff\n{"round": NaN, "total": Infinity}\n{"round": 1e999}\n'
            )
    (folder.path / "summary.json").write_text("{")
    (folder.path / "population.json").write_text("[")
    got = stands(folder.follow())
    assert got["round"] == 1
    assert any("lines of its tables are damaged" in text for text in got["warnings"])
    assert any("summary.json is damaged" in text for text in got["warnings"])
    json.dumps(got, allow_nan=False)
    (folder.path / "settings.toml").write_text("rounds = [")
    assert any("settings.toml is damaged" in text for text in stands(folder.follow())["warnings"])


def test_a_long_table_is_read_in_pieces(tmp_path, monkeypatch):
    monkeypatch.setattr(tails, "PIECE", 64)
    folder = Folder(tmp_path / "run")
    folder.play(1)
    follower = folder.follow()
    seen = 0
    while (got := follower.refresh(0.0))["reading"]:
        seen += 1
    assert seen > 5
    assert (got["round"], got["asked"]) == (1, 4)


def test_a_line_without_end_is_not_read_to_its_end(tmp_path, monkeypatch):
    monkeypatch.setattr(tails, "PIECE", 64)
    monkeypatch.setattr(tails, "MOST_LINE", 1000)
    (tmp_path / "metrics.jsonl").write_bytes(bytes(5000))
    with pytest.raises(ValueError, match="has a line of more than"):
        tails.Tail(tmp_path / "metrics.jsonl").next()


def test_runs_are_found_below_folders_and_links_are_not_followed(tmp_path):
    for name in ("runs/a", "runs/deep/er/b", "outside/c", "runs/.hidden/d", "runs/a/baseline-local"):
        Folder(tmp_path / name)
    (tmp_path / "runs" / "app").mkdir()
    (tmp_path / "runs" / "app" / "settings.toml").write_text("")  # an app, no run
    (tmp_path / "runs" / "link").symlink_to(tmp_path / "outside")
    runs = Folders.of([tmp_path / "runs"]).runs()
    assert sorted(found.name for found in runs.values()) == ["a", "deep/er/b"]
    both = Folders.of([tmp_path / "runs", tmp_path / "outside" / "c"]).runs()
    assert sorted(found.name for found in both.values()) == ["c", "runs/a", "runs/deep/er/b"]
    with pytest.raises(RunFolderError, match="is not there: name folders of runs"):
        Folders.of([tmp_path / "nowhere"])


def test_a_link_in_a_run_folder_is_not_read(tmp_path):
    folder = Folder(tmp_path / "run")
    (tmp_path / "secret").write_text('{"round": 1, "total": 1.0}\n')
    (folder.path / "seconds.jsonl").symlink_to(tmp_path / "secret")
    got = stands(folder.follow())
    assert (got["state"], got["round"]) == (following.FAILED, 0)
    assert "seconds.jsonl is a link, or no plain file" in got["why"]
    (folder.path / "seconds.jsonl").unlink()
    os.mkfifo(folder.path / "summary.json")  # reading it would wait for ever
    assert "summary.json is a link, or no plain file" in stands(folder.follow())["why"]
