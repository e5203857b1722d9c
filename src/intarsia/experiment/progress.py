"""Live progress of a run in a terminal; plain lines where there is none."""

from __future__ import annotations

import builtins
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from textwrap import indent
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from intarsia.core import SettingsError, in_words, indented
from intarsia.core.text import duration, percent, size
from intarsia.engines import Failure, Reply
from intarsia.federation import Observer, Observers, RoundReport
from intarsia.trackers import Tracker, trackers_of
from intarsia.trust.reputation import LEFT_OUT


class Progress(Observer):
    """Shows rounds, clients, accuracy, bytes and the time left; reports every client that fails, with its traceback."""

    def __init__(self, console: Console, title: str = "", folder: Path | None = None) -> None:
        self.console = console
        self.title = self._name = title
        self.folder = folder
        """The run folder, to be named when the run begins."""
        self._bar = Bar(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("round"),
            MofNCompleteColumn(),
            TextColumn("{task.fields[stage]}"),
            TextColumn("{task.fields[result]}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=console,
        )
        self._task = self._bar.add_task(title, start=False, stage="", result="", visible=False)
        self._answered = self._asked = 0
        self._stage = ""
        self._told: set[str] = set()
        self._begun = (0.0, 0)
        self.seconds: dict[int, dict[str, float]] = {}
        """Where the time of every round went."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.pause()

    def pause(self) -> None:
        """Take the bar away, if there is one: nothing of it runs while workers are forked."""
        if self._bar.live.is_started:
            self._bar.stop()

    def playing(self, what: str) -> None:
        """Name what runs; the bar of what ran before is gone when workers are forked."""
        self.pause()
        self.title = what or self._name
        self._bar.reset(self._task, description=escape(self.title), start=False, stage="", result="")

    def started(self, rounds: int, done: int, clients: int) -> None:
        """Name the folder, show the bar; the engine's workers are forked by now, so a thread may start."""
        self._begun = (time.monotonic(), done)
        if self.folder is not None:
            named = f"Run folder: [bold]{escape(str(self.folder))}[/]"
            self.console.print(named, highlight=False, soft_wrap=True)
            self.folder = None  # once is enough, with a baseline or several seeds too
        self._bar.update(self._task, total=rounds, completed=done, visible=True)
        self._bar.start_task(self._task)
        if self.console.is_terminal:
            self._bar.start()

    def exchange_started(self, round: int, name: str, clients: int) -> None:
        """Show which exchange runs."""
        self._answered, self._asked, self._stage = 0, clients, name
        self._bar.update(self._task, stage=f"{name} 0/{clients}")

    def replied(self, reply: Reply) -> None:
        """Count a client; report a failure."""
        self._answered += 1
        self._bar.update(self._task, stage=f"{self._stage} {self._answered}/{self._asked}")
        if reply.failure is not None:
            self._tell(reply.failure)

    def round_done(self, report: RoundReport) -> None:
        """Show the result of a round."""
        self.seconds[report.round] = dict(report.seconds)
        for failure in report.failures:
            if failure.kind == LEFT_OUT:
                self._tell(failure)
        result = self._result(report)
        self._bar.update(self._task, completed=report.round, result=result)
        if not self.console.is_terminal and self._line_due(report):
            title = f"{self.title}: " if self.title else ""
            line = f"{title}round {report.round}/{report.rounds}  {result}{self._left(report)}"
            self.console.print(escape(line), highlight=False, soft_wrap=True)

    def _tell(self, failure: Failure) -> None:
        told = f"[yellow]{escape(failure.kind)}[/] {escape(indented(failure.message))}"
        self.console.print(told, soft_wrap=True)
        if failure.details and failure.details not in self._told:
            self._told.add(failure.details)
            self.console.print(escape(indent(failure.details, "  ")), style="dim", highlight=False)

    def _result(self, report: RoundReport) -> str:
        sent = f"sent {size(report.bytes['up'] + report.bytes['down'])}"
        if report.epsilon is not None:
            sent += f"  epsilon {report.epsilon:.3g}"
        return f"accuracy {percent(report.accuracy.get('mean'))}  {sent}" if report.accuracy else sent

    def _left(self, report: RoundReport) -> str:
        """Say how long the rest takes if its rounds take as long as those that this has seen."""
        begun, before = self._begun
        each = (time.monotonic() - begun) / max(1, report.round - before)
        rest = report.rounds - report.round
        return f"  about {duration(rest * each)} left" if rest else ""

    def _line_due(self, report: RoundReport) -> bool:
        every = max(1, report.rounds // 10)
        return report.round % every == 0 or report.round == report.rounds


Watching = Observer | Iterable[Observer] | None
"""Who is told of a run: nobody, one observer, or several."""


def observers_of(observer: Watching, track: Iterable[str] = ()) -> Observer | None:
    """Return the observers and the trackers that are named as one observer (None: there is none)."""
    given = list(observer) if isinstance(observer, Iterable) else [observer]
    if not all(isinstance(one, Observer | None) for one in given):
        raise SettingsError(
            "observer: give an object of a class of intarsia.Observer, or a list of them, not "
            f"{in_words(observer)}"
        )
    told = [*filter(None, given), *trackers_of(track)]
    return Observers(told) if told else None


@contextmanager
def watched(observer: Observer | None, progress: bool | None, folder: Path) -> Iterator[Observer | None]:
    """Give who is told of a run: who is given; and one that shows it, if asked for or (None) if somebody looks.

    Trackers show nothing: beside them, and beside nobody else, a run is shown.
    """
    given = observer.observers if isinstance(observer, Observers) else (observer,) if observer else ()
    shown_already = not all(isinstance(one, Tracker) for one in given)
    if shown_already and progress:
        raise SettingsError("progress: an observer is given, which is told instead: leave one of them out")
    if shown_already or not (_somebody_looks() if progress is None else progress):
        yield observer
        return
    with Progress(Console(force_jupyter=False), folder=folder) as shown:
        yield Observers([shown, *given]) if given else shown


def _somebody_looks() -> bool:
    """Whether there is a terminal, or a notebook."""
    return sys.stdout.isatty() or hasattr(builtins, "__IPYTHON__")
