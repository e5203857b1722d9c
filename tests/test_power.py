"""The power goes at any moment: what was said to be saved is there, and the run ends as if nothing had been."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import intarsia
from intarsia.blocks import IntarsiaError
from intarsia.flower.keeper import Keeper
from intarsia.runs import RunFolder
from tests.power import VARIANTS, Call, Disk, record, strace_works
from tests.power_programs import ACKS, CLIENTS, run, site, site_states
from tests.test_resume import same_result

pytestmark = pytest.mark.skipif(not strace_works(), reason="needs strace, and leave to use it")


def cuts(calls: list[Call], folder: Path, out: Path) -> Iterator[tuple[str, int, Path]]:
    """Cut the power before every sync, and at the end; give each folder with what had been acknowledged until then.

    A checkpoint's own syncs are cut in every variant, those of the many blocks in one after the other.
    """
    disk, told = Disk(folder), -1
    for number, call in enumerate([*calls, Call("sync", "")]):
        if call.name == "sync":
            block = "/blocks/" in call.path
            for variant in [VARIANTS[number % len(VARIANTS)]] if block else VARIANTS:
                shutil.rmtree(out, ignore_errors=True)
                disk.show(out, variant, number)
                yield f"call {number}, sync {call.path}, {variant}", told, out
        if call.path == str(folder / ACKS) and call.name == "write":
            told = int(call.data)
        if call.path:
            disk.play(call)


def losses(
    program: Callable[[Path], None],
    check: Callable[[Path, int], None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> tuple[int, list[str]]:
    """Return how many cuts there were, and those after which something was lost."""
    (tmp_path / "watched").mkdir()
    calls = record(program, tmp_path / "watched", tmp_path / "strace.log")
    monkeypatch.setattr(os, "fsync", lambda _: None)  # from here on, only what is there after a cut matters
    lost, count = [], 0
    for name, told, folder in cuts(calls, tmp_path / "watched", tmp_path / "cut"):
        count += 1
        try:
            check(folder, told)
        except (IntarsiaError, AssertionError) as error:
            lost.append(f"{name}: {error}")
    return count, lost


def test_a_power_cut_loses_no_checkpoint_of_a_run(tmp_path, monkeypatch):
    ends = []

    def check(folder: Path, told: int) -> None:
        path = folder / "run"
        if not (path / "settings.toml").exists():
            assert told < 0
            RunFolder.create(path, "").close()
            return
        opened = RunFolder.reopen(path)
        try:
            state = opened.restore()
        finally:
            opened.close()
        assert (-1 if state is None else state.round) >= told
        if (None if state is None else state.round) not in {end[0] for end in ends}:
            ends.append((None if state is None else state.round, tmp_path / f"end-{len(ends)}"))
            shutil.copytree(path, ends[-1][1])

    count, lost = losses(run, check, tmp_path, monkeypatch)
    assert not lost, f"{len(lost)} of {count} cuts:\n" + "\n".join(lost[:20])
    print(count)
    assert count > 100
    assert {round for round, _ in ends} >= {None, 0, 1, 2, 3, 4, 5}
    for _, folder in ends:
        same_result(tmp_path / "watched" / "run", intarsia.resume(folder, engine={"name": "debug"}).path)


def test_a_power_cut_loses_no_state_at_a_site(tmp_path, monkeypatch):
    def check(folder: Path, told: int) -> None:
        keeper = Keeper(folder / "site" / "runs" / "cutrun")
        for client in range(CLIENTS if told >= 0 else 0):
            name, version = site_states()[told, client]
            state = keeper.find(f"client-{client}", name)
            assert state is not None, f"client {client} lost its state after exchange {told}"
            assert keeper.store.get(state["private"]["head"]).version == version

    count, lost = losses(site, check, tmp_path, monkeypatch)
    assert not lost, f"{len(lost)} of {count} cuts:\n" + "\n".join(lost[:20])
    print(count)
    assert count > 100
