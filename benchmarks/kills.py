"""Ends runs with SIGKILL at random moments, goes on, and compares: `python -m benchmarks.kills --kills 200`.

Every kill is of one of the golden plays, from a seed: its engine, its moment, and what is killed:

    process    the run, at any moment from its first line to its last
    writer     the run, at a step of the thread that writes checkpoints (opening, syncing, renaming, removing)
    worker     one worker process alone; the run has to go on by itself
    again      the run; then what went on with it; then that is gone on with

What comes out in the end must be the run that was never stopped, bit for bit: tables, verdicts, shared blocks, clients'
states; no draft, no block that no checkpoint names, no memory file and no process may be left. The record is
`benchmarks/kills.json`; the same command goes on where it was stopped.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import multiprocessing
import os
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from benchmarks import sections
from tests.conftest import SMALL
from tests.golden.plays import PLAYS, digests

import intarsia
from intarsia.core import DRAFTS, IntarsiaError
from intarsia.runs import RunFolder

RECORD = Path(__file__).with_suffix(".json")
ROUNDS = 4
WRITERS = ("intarsia-saving", "intarsia-syncing")
STEPS = ("open", "os.rename", "os.remove", "os.truncate", "os.mkdir")
TARGETS = ("process", "process", "writer", "writer", "worker", "again")
FORK = multiprocessing.get_context("fork")


@dataclass(frozen=True)
class Kill:
    """What is killed, and when, as a share of the whole run."""

    number: int
    play: str
    engine: str
    target: str
    moment: float

    @classmethod
    def of(cls, seed: int, number: int) -> Kill:
        """Return one of the kills of a seed: plays one after the other, in an order of its own."""
        names = sorted(PLAYS)
        random.Random(f"plays {seed} {number // len(names)}").shuffle(names)
        chance = random.Random(f"kill {seed} {number}")
        target = chance.choice(TARGETS)
        engine = "local" if target == "worker" else chance.choice(("debug", "local"))
        return cls(number, names[number % len(names)], engine, target, chance.random())


@dataclass(frozen=True)
class Whole:
    """A run that was never stopped."""

    result: Mapping[str, str]
    seconds: float
    steps: int
    """How often the thread that writes did something to a file."""


class Steps:
    """Counts what the writing thread does to files, and ends the process at one of these steps."""

    def __init__(self, last: int = 0) -> None:
        self.last, self.count = last, 0
        sync = os.fsync

        def watched(file: int) -> None:
            self._step("open", ())
            sync(file)

        os.fsync = watched  # type: ignore[assignment]  # in a process of its own, which ends with it
        sys.addaudithook(self._step)

    def _step(self, event: str, _: Any) -> None:
        if event in STEPS and threading.current_thread().name.startswith(WRITERS):
            self.count += 1
            if self.count == self.last:
                os.kill(os.getpid(), signal.SIGKILL)


def changes_of(play: str, engine: str) -> list[str]:
    """Return the changes to the small settings."""
    workers = ["engine.workers=2"] if engine == "local" else []
    return [*PLAYS[play], f"rounds={ROUNDS}", f"engine.name={engine}", *workers]


def begin_or_go_on(play: str, engine: str, folder: Path) -> None:
    """Do what one does after a kill."""
    if (folder / "settings.toml").exists():
        intarsia.resume(folder)
    else:
        intarsia.run(SMALL, changes=changes_of(play, engine), out=folder)


def result(folder: Path) -> dict[str, str]:
    """Return what a run was, as digests."""
    run = intarsia.open_run(folder)
    judged = hashlib.sha256(json.dumps(run.judged, sort_keys=True).encode()).hexdigest()[:16]
    return {**digests(run), "judged": judged, "finished": str(run.summary["finished"])}


def leftovers(path: Path) -> list[str]:
    """Return the files of a run folder that should not be there."""
    folder = RunFolder(path)
    named, journals = set(), set()
    for manifest in map(folder._read, folder._manifests()):
        records, _ = folder._journals.read(manifest.clients)
        named |= manifest.shared() | {version for record in records.values() for version in record.private}
        journals |= {file.name for file in folder._journals.files(manifest.clients.number)}
    state = path / "state"
    held = folder.store.files()
    blocks = [file for file in (state / "blocks").iterdir() if not named & held.get(file, set())]
    lines = [file for file in state.glob("clients-*") if file.name not in journals]
    aside = [*path.rglob(DRAFTS), *path.rglob("*.unusable-*")]
    return sorted(str(file.relative_to(path)) for file in (*blocks, *lines, *aside))


class Child:
    """A function in a process of its own; what it returns or raises comes back."""

    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self.pipe, theirs = FORK.Pipe()
        self.process = FORK.Process(target=_quietly, args=(theirs, function, *arguments))
        self.process.start()
        theirs.close()

    def result(self) -> Any:
        """Wait for what comes back; None after a kill."""
        try:
            kind, value = self.pipe.recv()
        except EOFError:
            kind, value = "killed", None
        self.process.join()
        if kind == "error":
            raise IntarsiaError(value)
        if kind == "foreign":
            raise RuntimeError(value)
        return value

    def workers(self) -> list[int]:
        """Return the processes that it started."""
        try:
            text = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text()
        except OSError:
            return []
        return [int(pid) for pid in text.split()]


def _quietly(pipe: Connection, function: Callable[..., Any], *arguments: Any) -> None:
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 1)
    os.dup2(quiet, 2)
    try:
        pipe.send(("done", function(*arguments)))
    except IntarsiaError as error:
        pipe.send(("error", str(error)))
    except BaseException as error:  # noqa: BLE001 - it is what is looked for
        pipe.send(("foreign", f"{type(error).__name__}: {error}"))


def _watched(play: str, engine: str, folder: Path, last: int = 0) -> int:
    steps = Steps(last)
    begin_or_go_on(play, engine, folder)
    return steps.count


class Kills:
    """Plays runs, kills them, and goes on."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._whole: dict[tuple[str, str], Whole] = {}

    def whole(self, play: str, engine: str) -> Whole:
        """Return the run that was never stopped; its result does not depend on the engine, and is compared."""
        key = (play, engine)
        if key not in self._whole:
            with self._place() as place:
                start = time.perf_counter()
                steps = Child(_watched, play, engine, place).result()
                seconds = time.perf_counter() - start
                self._whole[key] = Whole(Child(result, place).result(), seconds, steps)
        return self._whole[key]

    def done(self, kill: Kill) -> dict[str, Any]:
        """Kill, go on, compare; a kill that came after the end is done anew, earlier."""
        whole = self.whole(kill.play, kill.engine)
        moment = kill.moment
        while True:
            with self._place() as place:
                shared = set(os.listdir("/dev/shm"))
                if not self._kill(kill, whole, moment, place):
                    moment *= 0.7
                    continue
                reached = self._reached(place)
                found = self._go_on(kill, whole, place)
                found += [f"/dev/shm/{name}" for name in sorted(set(os.listdir("/dev/shm")) - shared)]
            return {**asdict(kill), "moment": round(moment, 3), "checkpoint": reached, "found": found}

    def _kill(self, kill: Kill, whole: Whole, moment: float, place: Path) -> bool:
        """Kill what is to be killed; return whether it was there."""
        if kill.target == "writer":
            return self._cut(_watched, kill, place, 1 + int(moment * whole.steps))
        if kill.target == "worker":
            return self._kill_worker(kill, moment * 0.7 * whole.seconds, place)
        if not self._cut(begin_or_go_on, kill, place, after=moment * whole.seconds):
            return False
        if kill.target == "again":
            self._cut(begin_or_go_on, kill, place, after=random.Random(moment).random() * whole.seconds)
        return True

    def _cut(
        self, program: Callable[..., Any], kill: Kill, place: Path, *more: int, after: float | None = None
    ) -> bool:
        child = Child(program, kill.play, kill.engine, place, *more)
        if after is not None:
            child.process.join(after)
        workers = child.workers()
        if after is not None and child.process.pid and child.process.is_alive():
            os.kill(child.process.pid, signal.SIGKILL)
        child.process.join()
        _wait_until(lambda: not any(map(_alive, workers)))
        return child.process.exitcode == -signal.SIGKILL

    def _kill_worker(self, kill: Kill, after: float, place: Path) -> bool:
        """Kill one worker, so long after the workers were there; return whether the run noticed it."""
        child = Child(begin_or_go_on, kill.play, kill.engine, place)
        _wait_until(lambda: len(child.workers()) == 2 or not child.process.is_alive())
        child.process.join(after)
        workers = child.workers()
        if workers:
            os.kill(random.Random(kill.moment).choice(workers), signal.SIGKILL)
        child.result()
        return any(event["kind"] == "died" for event in RunFolder(place).rows("events"))

    def _reached(self, place: Path) -> int:
        manifests = RunFolder(place)._manifests() if place.exists() else []
        return max((int(path.stem.split("-")[1]) for path in manifests), default=-1)

    def _go_on(self, kill: Kill, whole: Whole, place: Path) -> list[str]:
        """Go on to the end; return what differs from the run that was never stopped."""
        try:
            Child(begin_or_go_on, kill.play, kill.engine, place).result()
            after = Child(result, place).result()
            left: list[str] = Child(leftovers, place).result()
        except (IntarsiaError, RuntimeError) as error:
            return [str(error)]
        return [name for name in whole.result if whole.result[name] != after.get(name)] + left

    @contextmanager
    def _place(self) -> Iterator[Path]:
        place = self.folder / "run"
        shutil.rmtree(place, ignore_errors=True)
        yield place
        shutil.rmtree(place, ignore_errors=True)


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in ("Z", "X")
    except OSError:
        return False


def _wait_until(condition: Callable[[], bool], seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError("a run did not begin or end in time")
        time.sleep(0.01)


def run(count: int, seed: int, record: Path, show: Callable[[str], None] = print) -> list[dict[str, Any]]:
    """Do the kills that are not in the record yet; return all."""
    torch.set_num_threads(1)
    before = sections.read(record)
    done = [kill for kill in before.get("kills", []) if before.get("seed") == seed]
    with tempfile.TemporaryDirectory() as folder:
        os.environ["INTARSIA_CACHE"] = f"{folder}/cache"
        kills = Kills(Path(folder))
        for number in range(len(done), count):
            done.append(kills.done(Kill.of(seed, number)))
            sections.update(record, seed=seed, rounds=ROUNDS, kills=done)
            show(json.dumps(done[-1]))
    return done


def main() -> int:
    """Kill, and say what came of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--record", type=Path, default=RECORD)
    options = parser.parse_args()
    done = run(options.kills, options.seed, options.record)
    wrong = [kill for kill in done if kill["found"]]
    print(f"{len(done)} kills {dict(Counter(k['target'] for k in done))}, {len(wrong)} not bit-equal")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
