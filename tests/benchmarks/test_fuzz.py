"""Some thousand mutated frames and files in every test run; `python -m benchmarks.fuzz --frames 10000000` throws more."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="needs Flower: pip install 'intarsia[flower]'")

from benchmarks import fuzz, sections


def test_only_our_errors_come_out_of_the_decoders():
    outcomes, _ = fuzz.in_a_process(4000, seed=1)
    assert {name: outcome["foreign"] for name, outcome in outcomes.items() if outcome["foreign"]} == {}
    assert all(outcome["frames"] > 10 for outcome in outcomes.values())
    assert sum(outcome["refused"] for outcome in outcomes.values()) > 1500
    deaf = {name for name, outcome in outcomes.items() if outcome["refused"] == outcome["frames"]}
    assert not deaf, "these refuse everything: what they are given is no real file"


def test_a_foreign_error_would_be_seen():
    outcome = fuzz.Outcome()
    fuzz.throw(lambda: {}["x"], outcome)
    assert sum(outcome.foreign.values()) == 1


def test_a_file_touched_elsewhere_would_be_seen(tmp_path):
    (tmp_path / "inside").mkdir()
    outside = fuzz.Outside(tmp_path / "inside")
    (tmp_path / "inside" / "a").write_text("")
    assert not outside.touched
    (tmp_path / "b").write_text("")
    os.remove(tmp_path / "b")
    outside.looking = False
    assert outside.touched == [f"open {tmp_path / 'b'}", f"os.remove {tmp_path / 'b'}"]


def _crash(*_: object) -> None:
    os._exit(7)


def test_a_crash_would_be_seen_and_batches_add_up(tmp_path, monkeypatch):
    monkeypatch.setattr(fuzz, "_batch", _crash)
    known = fuzz.go_on(10, tmp_path / "fuzz.json", lambda text: None)
    assert known["decoders"]["crash"]["foreign"] == {"seed 0: the process ended with 7": 1}
    one = {"frames": 3, "refused": 2, "seconds": 0.5, "slowest": 0.1, "foreign": {}}
    monkeypatch.setattr(fuzz, "in_a_process", lambda count, seed, only: ({"x": one}, 100 + seed))
    for _ in range(2):
        known = fuzz.go_on(7, Path(tmp_path / "more.json"), lambda text: None)
    assert known == sections.read(tmp_path / "more.json")
    assert (known["batches"], known["peak_mib"], known["decoders"]["x"]["frames"]) == (3, 102, 9)
