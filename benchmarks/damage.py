"""Damages run folders and the disk below them, goes on, and compares: `python -m benchmarks.damage --damages 1000`.

Every damage is of one file of a folder, from a seed: cut short, emptied, a bit flipped, bytes overwritten, added to,
removed, or swapped for another file of its kind; of runs that were killed and of runs that have ended. Then:

    going on    gives the run that was never damaged, bit for bit; or an error of ours, and no other file has changed
    reading     (tables, summary, page, a client's model) gives something, or an error of ours

`--disks N` lets N runs meet a disk that is full, read-only or broken at some step, and go on when it is not any more.
The record is sections of `benchmarks/kills.json`; the same command goes on where it was stopped.
"""

from __future__ import annotations

import argparse
import errno
import json
import os
import random
import shutil
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from benchmarks import sections
from benchmarks.kills import RECORD, STEPS, WRITERS, Child, changes_of, leftovers, result
from tests.conftest import SMALL

import intarsia
from intarsia.core import IntarsiaError

PLAYS = ("fedper", "found cohorts", "pfedclub", "clustered_fl with int8", "fedavg+", "fedmn+", "validation")
KILLED_AFTER = 3
UNTOUCHED = ("state/lock",)
"""What may be another file after a refusal."""
ERRORS = (errno.ENOSPC, errno.EROFS, errno.EIO)
Damage = Callable[[Path, random.Random], None]


def _cut(path: Path, chance: random.Random) -> None:
    os.truncate(path, int(chance.random() * path.stat().st_size))


def _empty(path: Path, chance: random.Random) -> None:
    path.write_bytes(b"")


def _flip(path: Path, chance: random.Random) -> None:
    data = bytearray(path.read_bytes() or b"\0")
    data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    path.write_bytes(data)


def _overwrite(path: Path, chance: random.Random) -> None:
    data = path.read_bytes()
    at = chance.randrange(len(data) + 1)
    path.write_bytes(data[:at] + chance.randbytes(16) + data[at + 16 :])


def _add(path: Path, chance: random.Random) -> None:
    path.write_bytes(path.read_bytes() + chance.choice((b"x", b"{}\n", b"\0" * 512, chance.randbytes(64))))


def _remove(path: Path, chance: random.Random) -> None:
    path.unlink()


def _swap(path: Path, chance: random.Random) -> None:
    others = sorted(p for p in path.parent.glob(f"*{path.suffix}") if p != path and p.is_file())
    other = chance.choice(others) if others else path
    mine, theirs = path.read_bytes(), other.read_bytes()
    path.write_bytes(theirs)
    other.write_bytes(mine)


DAMAGES: Mapping[str, Damage] = {
    "cut short": _cut,
    "emptied": _empty,
    "a bit flipped": _flip,
    "overwritten": _overwrite,
    "added to": _add,
    "removed": _remove,
    "swapped": _swap,
}


def kind_of(name: str) -> str:
    """Return what kind of file this is, by its name in the run folder."""
    kinds = {
        "state/checkpoint-": "manifest",
        "state/clients-": "journal",
        "state/blocks/": "block",
        "state/own": "own models",
        "state/settings-": "settings' copy",
    }
    return next((kind for start, kind in kinds.items() if name.startswith(start)), name)


class Folders:
    """Run folders to damage: by play, one that was killed in mid-run, and one that has ended."""

    def __init__(self, home: Path) -> None:
        self.home = home

    def make(self, play: str) -> dict[str, Path]:
        """Return the folders of a play."""
        whole, killed = self.home / f"{play} ended", self.home / f"{play} killed"
        if not killed.exists():
            Child(_play, play, whole, killed).result()
        return {"ended": whole, "killed": killed}


def _play(play: str, whole: Path, killed: Path) -> None:
    class Copying(intarsia.Observer):
        def round_done(self, report: intarsia.RoundReport) -> None:
            if report.round == KILLED_AFTER:
                shutil.copytree(whole, killed, ignore=shutil.ignore_patterns(".*"))

    intarsia.run(SMALL, changes=changes_of(play, "debug"), out=whole, observer=Copying())


def contents(folder: Path) -> dict[str, bytes]:
    """Return all files of a folder."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def going_on(folder: Path, whole: Mapping[str, str]) -> tuple[str, list[str]]:
    """Go on with a folder; return what came of it, and what should not have."""
    before = contents(folder)
    try:
        intarsia.resume(folder)
    except IntarsiaError as error:
        after = contents(folder)
        changed = {n for n in before.keys() | after.keys() if before.get(n) != after.get(n)}
        found = [f"changed by a refusal: {name}" for name in sorted(changed - set(UNTOUCHED))]
        said = str(error).replace(f"{folder.parent}/", "")
        return f"refused: {said[:200]}", found
    ending = result(folder)
    differs = [f"differs: {name}" for name in whole if whole[name] != ending.get(name)]
    left = [name for name in leftovers(folder) if ".unusable-" not in name]
    return "equal", differs + [f"left over: {name}" for name in left]


def reading(folder: Path) -> None:
    """Read all that a run folder shows; errors of ours are answers too."""
    from intarsia.report import page, view

    run = intarsia.open_run(folder)
    asked: list[Callable[[], Any]] = [
        *(
            lambda n=n: getattr(run, n)
            for n in ("summary", "settings", "metrics", "traffic", "events", "judged")
        ),
        *(lambda n=n: getattr(run, n) for n in ("groups", "notes", "seconds", "population", "clients")),
        run.state,
        lambda: run.client(run.clients[0]).model(),
        lambda: page("run", "", [view(run)]),
    ]
    for ask in asked:
        try:
            ask()
        except IntarsiaError:
            continue


def damaged(folders: Mapping[str, Path], seed: int, number: int, play: str) -> dict[str, Any]:
    """Damage one file, go on, read; return what came of it."""
    chance = random.Random(f"damage {seed} {number}")
    when = chance.choice(sorted(folders))
    place = folders[when].with_name("damaged")
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(folders[when], place)
    kinds: dict[str, list[str]] = {}
    for name in sorted(contents(place)):
        kinds.setdefault(kind_of(name), []).append(name)
    file = chance.choice(kinds[chance.choice(sorted(kinds))])
    way = chance.choice(sorted(DAMAGES))
    DAMAGES[way](place / file, chance)
    entry = {"number": number, "play": play, "when": when, "file": file, "damage": way}
    read = place.with_name("read")
    shutil.rmtree(read, ignore_errors=True)
    shutil.copytree(place, read)
    found = _foreign(lambda: reading(read))
    outcome = "foreign"
    try:
        outcome, more = going_on(place, result(folders["ended"]))
        found += more
    except Exception as error:  # noqa: BLE001 - it is what is looked for
        found.append(f"going on: {type(error).__name__}: {error}"[:300])
    return {**entry, "outcome": outcome.partition(":")[0], "said": outcome[9:], "found": found}


def _foreign(read: Callable[[], None]) -> list[str]:
    try:
        read()
    except IntarsiaError:
        return []
    except Exception as error:  # noqa: BLE001 - it is what is looked for
        return [f"reading: {type(error).__name__}: {error}"[:300]]
    return []


class Broken:
    """From some step of a run on, every change of a file in its folder fails."""

    def __init__(self, folder: Path, first: int, number: int, only_writer: bool) -> None:
        self.folder, self.first, self.number, self.only_writer = f"{folder}/", first, number, only_writer
        self.count = 0
        sync = os.fsync

        def watched(file: int) -> None:
            self.step("os.rename", (f"{self.folder}a file that is synced",))
            sync(file)

        os.fsync = watched  # type: ignore[assignment]  # in a process of its own, which ends with it
        sys.addaudithook(self.step)

    def step(self, event: str, about: Any) -> None:
        """Count, or fail."""
        if event not in STEPS or not str(about[0]).startswith(self.folder):
            return
        if event == "open" and not (about[2] or 0) & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
            return
        if self.only_writer and not threading.current_thread().name.startswith(WRITERS):
            return
        self.count += 1
        if self.first and self.count >= self.first:
            raise OSError(self.number, os.strerror(self.number), str(about[0]))


def _on_a_broken_disk(play: str, folder: Path, first: int, number: int, only_writer: bool) -> int:
    broken = Broken(folder, first, number, only_writer)
    intarsia.run(SMALL, changes=changes_of(play, "debug"), out=folder)
    return broken.count


def broken_disk(folders: Folders, seed: int, number: int, play: str) -> dict[str, Any]:
    """Let the disk break at some step; go on when it is mended."""
    chance = random.Random(f"disk {seed} {number}")
    code, only_writer = chance.choice(ERRORS), chance.random() < 0.5
    place = folders.home / "disk"
    shutil.rmtree(place, ignore_errors=True)
    steps = Child(_on_a_broken_disk, play, place, 0, code, only_writer).result()
    shutil.rmtree(place, ignore_errors=True)
    first = chance.randint(1, steps)
    found, said = [], ""
    try:
        Child(_on_a_broken_disk, play, place, first, code, only_writer).result()
        found.append("nobody noticed")
    except IntarsiaError as error:
        said = str(error).replace(f"{folders.home}/", "")
    except RuntimeError as error:
        found.append(str(error)[:300])
    found += Child(_mended, play, place, folders.make(play)["ended"]).result()
    entry = {"number": number, "play": play, "error": errno.errorcode[code], "step": first, "of": steps}
    return {**entry, "said": said[:160], "found": found}


def _mended(play: str, place: Path, ended: Path) -> list[str]:
    if (place / "settings.toml").exists():
        return going_on(place, result(ended))[1]
    intarsia.run(SMALL, changes=changes_of(play, "debug"), out=place)
    after, whole = result(place), result(ended)
    return [name for name in whole if whole[name] != after[name]] + leftovers(place)


def clocks(folders: Folders, seed: int) -> dict[str, Any]:
    """Let the clock jump by years, back and forth, at every look at it, in a run, and while going on."""
    place = folders.home / "clock"
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(folders.make("found cohorts")["killed"], place)
    return {
        "seed": seed,
        "found": Child(_under_clocks, seed, place, folders.make("found cohorts")["ended"]).result(),
    }


def _under_clocks(seed: int, place: Path, ended: Path) -> list[str]:
    chance, real = random.Random(seed), time.time

    def jumping() -> float:
        return real() + chance.uniform(-3e8, 3e8)

    time.time = jumping
    for file in place.rglob("*"):
        os.utime(file, (max(0.0, jumping()),) * 2)
    found = going_on(place, result(ended))[1]
    anew = place.with_name("clock anew")
    shutil.rmtree(anew, ignore_errors=True)
    intarsia.run(SMALL, changes=changes_of("found cohorts", "local"), out=anew)
    after, whole = result(anew), result(ended)
    return found + [f"differs: {name}" for name in whole if whole[name] != after[name]]


def run(
    damages: int, disks: int, seed: int, record: Path, show: Callable[[str], None] = print
) -> dict[str, Any]:
    """Do what is not in the record yet; return the record."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as home:
        os.environ["INTARSIA_CACHE"] = f"{home}/cache"
        folders = Folders(Path(home))

        def damage(number: int) -> dict[str, Any]:
            play = PLAYS[number % len(PLAYS)]
            made: dict[str, Any] = Child(damaged, folders.make(play), seed, number, play).result()
            return made

        def disk(number: int) -> dict[str, Any]:
            return broken_disk(folders, seed, number, PLAYS[number % len(PLAYS)])

        for section, count, one in (("damages", damages, damage), ("disks", disks, disk)):
            done = sections.read(record).get(section, [])
            for number in range(len(done), count):
                done.append(one(number))
                if done[-1]["found"]:
                    show(json.dumps(done[-1]))
                if number % 20 == 19 or number == count - 1:
                    sections.update(record, **{section: done})
        sections.update(record, clocks=[clocks(folders, number) for number in range(2)])
    return sections.read(record)


def main() -> int:
    """Damage, and say what came of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--damages", type=int, default=1000)
    parser.add_argument("--disks", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--record", type=Path, default=RECORD)
    options = parser.parse_args()
    record = run(options.damages, options.disks, options.seed, options.record)
    parts = ("damages", "disks", "clocks")
    wrong = [entry for part in parts for entry in record.get(part, []) if entry["found"]]
    outcomes = Counter(entry["outcome"] for entry in record.get("damages", []))
    print(f"{ {part: len(record.get(part, [])) for part in parts} }, {dict(outcomes)}, {len(wrong)} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
