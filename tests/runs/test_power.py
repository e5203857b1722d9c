"""The power goes at any moment: what was said to be saved is there, and the run ends as if nothing had been."""

from __future__ import annotations

import fcntl
import multiprocessing
import os
import shutil
import struct
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import intarsia
from intarsia.core import IntarsiaError
from intarsia.flower.site.site_store import SiteStore
from intarsia.runs import RunFolder
from tests.runs.power import VARIANTS, Call, Disk, record, strace_works
from tests.runs.power_programs import ACKS, CLIENTS, EXCHANGES, run, site, site_states
from tests.runs.test_resume import same_result, wait_for

needs_strace = pytest.mark.skipif(not strace_works(), reason="needs strace, and leave to use it")


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


@needs_strace
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
    assert count > 100
    assert {round for round, _ in ends} >= {None, 0, 1, 2, 3, 4, 5}
    for _, folder in ends:
        same_result(tmp_path / "watched" / "run", intarsia.resume(folder, engine={"name": "debug"}).path)


def check_site(folder: Path, told: int) -> None:
    """Fail unless the site has what it told the server, or what came after it, with every block."""
    store = SiteStore(folder / "site" / "runs" / "cutrun")
    for client in range(CLIENTS if told >= 0 else 0):
        known = {e: site_states()[e, client] for e in range(EXCHANGES)}
        states = {e: store.find(f"client-{client}", name) for e, (name, _) in known.items()}
        there = {exchange: state for exchange, state in states.items() if state}
        assert max(there, default=-1) >= told, f"client {client} lost its state after exchange {told}"
        for exchange, state in there.items():
            assert store.blocks.get(state["private"]["head"]).version == known[exchange][1]


@needs_strace
def test_a_power_cut_loses_no_state_at_a_site(tmp_path, monkeypatch):
    count, lost = losses(site, check_site, tmp_path, monkeypatch)
    assert not lost, f"{len(lost)} of {count} cuts:\n" + "\n".join(lost[:20])
    assert count > 60


SHUT_DOWN, WITHOUT_THE_JOURNAL = 0x8004587D, 2
"""What tells a file system of Linux that its disk is gone, as from now."""


def can_mount() -> bool:
    tools = all(map(shutil.which, ("mkfs.ext4", "mount", "umount")))
    return tools and hasattr(os, "geteuid") and os.geteuid() == 0 and Path("/dev/loop-control").exists()


@contextmanager
def mounted(image: Path, place: Path) -> Iterator[None]:
    subprocess.run(["mount", "-o", "loop", image, place], check=True, capture_output=True)
    try:
        yield
    finally:
        # Workers of a process that was killed hold their files for a moment more.
        wait_for(lambda: subprocess.run(["umount", place], capture_output=True).returncode == 0)


def cut_off(program: Callable[[Path], None], told: int, tmp_path: Path) -> Path:
    """Run a function on a disk of its own, which is gone as soon as so much was acknowledged; return what is left."""
    image, place, left = (tmp_path / name for name in ("image", "place", "left"))
    image.write_bytes(b"")
    os.truncate(image, 64 << 20)
    subprocess.run(["mkfs.ext4", "-q", image], check=True, capture_output=True)
    place.mkdir()
    with mounted(image, place):
        process = multiprocessing.get_context("fork").Process(target=program, args=(place,))
        process.start()
        wait_for(lambda: f"{told}\n" in (place / ACKS).read_text() if (place / ACKS).exists() else False)
        disk = os.open(place, os.O_RDONLY)
        fcntl.ioctl(disk, SHUT_DOWN, struct.pack("I", WITHOUT_THE_JOURNAL))
        os.close(disk)
        process.kill()
        process.join()
    with mounted(image, place):
        shutil.copytree(place, left, ignore=shutil.ignore_patterns("lost+found"))
    return left


@pytest.mark.skipif(
    not can_mount(), reason="needs a file system of its own: Linux, root, loop devices, mkfs.ext4"
)
@pytest.mark.parametrize("told", [1, 3])
def test_a_disk_that_is_gone_loses_no_checkpoint_of_a_run(told, tmp_path):
    """As above, with a real file system: ext4 that is shut down in mid-run, and mounted again."""
    left = cut_off(run, told, tmp_path)
    folder = RunFolder.reopen(left / "run")
    state = folder.restore()
    folder.close()
    assert state is not None
    assert state.round >= told
    assert state.clients


@pytest.mark.skipif(
    not can_mount(), reason="needs a file system of its own: Linux, root, loop devices, mkfs.ext4"
)
@pytest.mark.parametrize("told", [0, EXCHANGES - 1])
def test_a_disk_that_is_gone_loses_no_state_at_a_site(told, tmp_path):
    check_site(cut_off(site, told, tmp_path), told)
