"""How contestants are compared: processes that play in turn, pairs, and the median of their ratios."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from benchmarks.speed.measuring import Measurement, Watch, born, processes, tree

ROOT = Path(__file__).parents[2]
QUIET = 0.2
"""A pair counts as undisturbed if others kept fewer cores than this busy, on average."""
PATIENCE = 900.0
"""Seconds after which a contestant that does not answer is given up."""

Block = Mapping[str, Measurement]


class Broken(RuntimeError):  # noqa: N818
    """A contestant that cannot play."""


@dataclass(frozen=True)
class Entry:
    """How a contestant is started; the folder of the task follows the command."""

    name: str
    title: str
    command: tuple[str, ...]

    def start(self, folder: Path, log: Path) -> Contestant:
        """Start it on a task."""
        return Contestant(self, folder, log)


class Contestant:
    """A contestant's process, as the harness sees it."""

    def __init__(self, entry: Entry, folder: Path, log: Path) -> None:
        self.entry, self.log = entry, log
        with log.open("ab") as errors:
            self.process = subprocess.Popen(
                [*entry.command, str(folder)],
                cwd=ROOT,
                env=_environment(),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )

    def ready(self) -> None:
        """Wait until everything is loaded."""
        self._read()

    def ask(self, **message: Any) -> dict[str, Any]:
        """Send one message and return the reply."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps(message) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            raise self._broken("ended") from None
        return self._read()

    def measure(self, rounds: int) -> Measurement:
        """Play some rounds and return what they cost."""
        watch = Watch(self.process.pid)
        reply = self.ask(rounds=rounds)
        return watch.stop(reply["wall"])

    def stop(self) -> None:
        """Close its input, and end what does not end by itself."""
        running = self.process.poll() is None
        members = {pid: born(pid) for pid in tree(self.process.pid, processes())} if running else {}
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        with suppress(OSError):
            self.process.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(timeout=30)
        for pid, birth in members.items():
            with suppress(ProcessLookupError):
                if birth and born(pid) == birth:
                    os.kill(pid, signal.SIGKILL)
        self.process.wait()
        self.process.stdout.close()

    def _read(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        if not select.select([self.process.stdout], [], [], PATIENCE)[0]:
            raise self._broken(f"gave no answer in {PATIENCE:.0f} s")
        line = self.process.stdout.readline()
        if not line:
            raise self._broken("ended")
        reply: dict[str, Any] = json.loads(line)
        return reply

    def _broken(self, what: str) -> Broken:
        last = self.log.read_text(errors="replace").strip().splitlines()[-1:]
        return Broken(f"{self.entry.name} {what}: {''.join(last)[-300:] or 'no message'}")


def measure_job(entry: Entry, folder: Path, log: Path, rounds: int) -> Measurement:
    """Start a contestant, play all its rounds, and let it end; the wall time is that of the whole process."""
    contestant = entry.start(folder, log)
    try:
        watch = Watch(contestant.process.pid, fresh=True)
        contestant.ready()
        contestant.ask(rounds=rounds, last=True)
        used = watch.stop()
    finally:
        contestant.stop()
    return Measurement(watch.stop().wall, used.cpu, used.foreign)


def play(
    names: Sequence[str],
    measure: Callable[[str], Measurement],
    pairs: int,
    repeats: int,
    say: Callable[[str], None] = lambda text: None,
) -> list[Block]:
    """Let everyone play once a block, in rotated order, until enough blocks were undisturbed.

    Disturbed ones are repeated, but only so often.
    """
    blocks: list[Block] = []
    while len(blocks) < pairs + repeats and sum(map(quiet, blocks)) < pairs:
        turn = len(blocks) % len(names)
        order = [*names[turn:], *names[:turn]]
        measured = {name: measure(name) for name in order}
        blocks.append(measured)
        say(", ".join(f"{name} {measured[name].wall:.2f} s" for name in names))
    return blocks


def quiet(block: Block) -> bool:
    """Return whether nothing else kept the machine busy while this block was played."""
    return all(m.foreign < QUIET for m in block.values())


def compare(blocks: Sequence[Block], us: str, them: str, pairs: int) -> dict[str, Any]:
    """Return the median of paired ratios, theirs to ours, over the least disturbed pairs."""
    both = sorted(((b[us], b[them]) for b in blocks), key=lambda pair: max(m.foreign for m in pair))[:pairs]
    walls = [theirs.wall / ours.wall for ours, theirs in both]
    cpus = [theirs.cpu / ours.cpu for ours, theirs in both if ours.cpu]
    low, high = bootstrap(walls)
    return {
        "ratio": median(walls),
        "low": low,
        "high": high,
        "cpu_ratio": median(cpus) if cpus else None,
        "pairs": len(both),
        "seconds": [median(m.wall for m in side) for side in zip(*both, strict=True)],
        "cpu_seconds": [median(m.cpu for m in side) for side in zip(*both, strict=True)],
        "foreign": median(max(m.foreign for m in pair) for pair in both),
        "disturbed": sum(max(m.foreign for m in pair) >= QUIET for pair in both),
    }


def bootstrap(values: Sequence[float], draws: int = 4000, seed: int = 0) -> tuple[float, float]:
    """Return the interval in which the median of resampled values lies in 95 % of all draws."""
    source = np.random.default_rng(seed)
    drawn = source.choice(np.asarray(values), (draws, len(values)))
    low, high = np.quantile(np.median(drawn, axis=1), (0.025, 0.975))
    return float(low), float(high)


def _environment() -> dict[str, str]:
    """Return the environment of a contestant: nothing decides about threads but the contestant itself."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("OMP_", "MKL_", "GOMP_"))}
    path = os.pathsep.join([str(ROOT), str(ROOT / "src")])
    return {**kept, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1"}
