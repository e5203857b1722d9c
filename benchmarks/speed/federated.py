"""A workload from start to end: files, weights checked against the reference, then pairs."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.speed import reference
from benchmarks.speed.entries import Unavailable, entry
from benchmarks.speed.measuring import Measurement
from benchmarks.speed.protocol import Broken, Contestant, Entry, compare, measure_job, play
from benchmarks.speed.reference import Weights
from benchmarks.speed.results import Row
from benchmarks.speed.task import Task
from benchmarks.speed.workloads import Workload

OURS, AGAIN = "ours", "again"


@dataclass(frozen=True)
class Plan:
    """How thoroughly to measure, and against whom."""

    pairs: int = 9
    repeats: int = 3
    """How many blocks may be played again because something else kept the machine busy."""
    against: Sequence[str] = ()
    """Opponents (none named: all that a workload names)."""
    paths: Mapping[str, Path] = field(default_factory=dict)
    """Checkouts of peers that pip does not install."""
    quick: bool = False
    """Whether this is only to see that everything works: smaller and fewer."""

    def opponents(self, workload: Workload) -> list[str]:
        """Return whom to compare with on a workload."""
        return [name for name in workload.against if not self.against or name in self.against]


def run(workload: Workload, plan: Plan) -> tuple[list[Row], dict[str, str]]:
    """Return the rows of a workload, and who was left out and why."""
    skipped: dict[str, str] = {}
    entries = list(_entries(plan.opponents(workload), plan.paths, skipped))
    with tempfile.TemporaryDirectory(prefix="bench-") as temporary:
        folder = Path(temporary)
        workload.write(folder, _capacity(workload, plan))
        match = Match(workload, plan, folder, entries, skipped)
        return match.rows(), skipped


@dataclass
class Match:
    """Everyone on one workload."""

    workload: Workload
    plan: Plan
    folder: Path
    entries: list[Entry]
    skipped: dict[str, str]
    differences: dict[str, float] = field(default_factory=dict)

    def rows(self) -> list[Row]:
        """Check everyone's weights, let them play, and return a row for each opponent."""
        truth = reference.weights_after(Task(self.folder), self.workload.check)
        with ExitStack() as stack:
            playing = {}
            for e in self.entries:
                try:
                    contestant = stack.enter_context(started(e, self.folder))
                    self.differences[e.name] = self._check(contestant, truth)
                except Broken as error:
                    if e.name == OURS:
                        raise
                    self._skip(e.name, str(error))
                    continue
                if self.workload.job:
                    contestant.stop()
                playing[e.name] = contestant
            return self._play(playing)

    def _check(self, contestant: Contestant, truth: Weights) -> float:
        """Play the first rounds, compare the weights with the reference, and play on to a whole measurement."""
        name, rounds = contestant.entry.name, self.workload.check
        contestant.ready()
        contestant.ask(rounds=rounds)
        path = self.folder / f"{name}.safetensors"
        contestant.ask(weights=str(path))
        found = reference.difference(path, truth, Task(self.folder).weights)
        apart = f"{found.largest:.1e}, {100 * found.share:.1g} % of the way"
        say(f"{name}: weights differ from the reference by {apart}")
        if not found.tolerable(self.workload.apart if name in (OURS, AGAIN) else 0.02):
            raise Broken(f"{name} ends with other weights than the reference: {apart} apart")
        if not self.workload.job:
            contestant.ask(rounds=_warm_up(self.workload))
        return found.largest

    def _play(self, playing: Mapping[str, Contestant]) -> list[Row]:
        """Let everyone play in turn; who breaks down plays no more."""

        def measure(name: str) -> Measurement:
            if name in self.skipped:
                return Measurement(math.nan, math.nan, 0.0)
            try:
                return self._measure(playing[name])
            except Broken as error:
                if name == OURS:
                    raise
                self._skip(name, str(error))
                return measure(name)

        blocks = play(list(playing), measure, self.plan.pairs, self.plan.repeats, say)
        return [
            {
                "workload": self.workload.name,
                "against": name,
                **compare(blocks, OURS, name, self.plan.pairs),
                "samples": self.workload.rounds * self.workload.samples_a_round,
                "difference": self.differences[name],
            }
            for name in playing
            if name != OURS and name not in self.skipped
        ]

    def _measure(self, contestant: Contestant) -> Measurement:
        if self.workload.job:
            return measure_job(contestant.entry, self.folder, contestant.log, self.workload.rounds)
        return contestant.measure(self.workload.rounds)

    def _skip(self, name: str, reason: str) -> None:
        say(f"{name} is left out: {reason}")
        self.skipped[name] = reason


def say(text: str) -> None:
    """Tell who watches."""
    print(f"  {text}", flush=True)


@contextmanager
def started(entry: Entry, folder: Path) -> Iterator[Contestant]:
    """Start a contestant, and stop it in the end, whatever happens."""
    contestant = entry.start(folder, folder / f"{entry.name}.log")
    try:
        yield contestant
    finally:
        contestant.stop()


def _entries(names: Iterable[str], paths: Mapping[str, Path], skipped: dict[str, str]) -> Iterable[Entry]:
    for name in (OURS, *names):
        try:
            yield entry(name, paths)
        except Unavailable as error:
            say(f"{name} is left out: {error}")
            skipped[name] = str(error)


def _warm_up(workload: Workload) -> int:
    """Return how many rounds to play after the check: at least one, up to the end of a measurement."""
    return workload.rounds - workload.check % workload.rounds


def _capacity(workload: Workload, plan: Plan) -> int:
    """Return how many rounds the files must hold."""
    if workload.job:
        return max(workload.rounds, workload.check)
    measured = workload.rounds * (plan.pairs + plan.repeats)
    return workload.check + _warm_up(workload) + measured
