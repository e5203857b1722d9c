"""Live progress of a run in a terminal; plain lines where there is none."""

from __future__ import annotations

from textwrap import indent
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar

from intarsia.core import indented
from intarsia.engines import Failure, Reply
from intarsia.federation import Observer, RoundReport
from intarsia.report.words import mean_and_std, percent, size
from intarsia.tuning import Trial, TuningObserver, name_of


class Progress(Observer):
    """Shows rounds, clients, accuracy and bytes; reports every client that fails, with its traceback."""

    def __init__(self, console: Console, title: str = "") -> None:
        self.console = console
        self.title = self._name = title
        self._bar = Bar(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("round"),
            MofNCompleteColumn(),
            TextColumn("{task.fields[stage]}"),
            TextColumn("{task.fields[result]}"),
            TimeElapsedColumn(),
            console=console,
        )
        self._task = self._bar.add_task(title, start=False, stage="", result="", visible=False)
        self._answered = self._asked = 0
        self._stage = ""
        self._told: set[str] = set()
        self.seconds: dict[int, dict[str, float]] = {}
        """Where the time of every round went."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def playing(self, what: str) -> None:
        """Name what runs; the bar of what ran before is gone when workers are forked."""
        if self._bar.live.is_started:
            self._bar.stop()
        self.title = what or self._name
        self._bar.reset(self._task, description=escape(self.title), start=False, stage="", result="")

    def started(self, rounds: int, done: int, clients: int) -> None:
        """Show the bar; the engine's workers are forked by now, so a thread may start."""
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
        result = self._result(report)
        self._bar.update(self._task, completed=report.round, result=result)
        if not self.console.is_terminal and self._line_due(report):
            title = f"{self.title}: " if self.title else ""
            self.console.print(f"{title}round {report.round}/{report.rounds}  {result}", highlight=False)

    def _tell(self, failure: Failure) -> None:
        told = f"[yellow]{escape(failure.kind)}[/] {escape(indented(failure.message))}"
        self.console.print(told, soft_wrap=True)
        if failure.details and failure.details not in self._told:
            self._told.add(failure.details)
            self.console.print(escape(indent(failure.details, "  ")), style="dim", highlight=False)

    def _result(self, report: RoundReport) -> str:
        sent = f"sent {size(report.bytes['up'] + report.bytes['down'])}"
        return f"accuracy {percent(report.accuracy.get('mean'))}  {sent}" if report.accuracy else sent

    def _line_due(self, report: RoundReport) -> bool:
        every = max(1, report.rounds // 10)
        return report.round % every == 0 or report.round == report.rounds


class TuningProgress(Progress, TuningObserver):
    """Shows the runs of a search and a line for each trial; test data is not shown, it has no say here."""

    def run_started(self, trial: Trial, seed: int, trials: int) -> None:
        """Show a new bar; the last one is stopped before the workers of this run are forked."""
        self._pause()
        seeds = f" seed {seed}" if len(trial.seeds) > 1 else ""
        title = f"{trial.number}/{trials} {name_of(trial.point)}{seeds}"
        self._bar.reset(self._task, description=escape(title), start=False, stage="", result="")

    def trial_done(self, trial: Trial, trials: int, measure: str) -> None:
        """Show the score of a trial, or why it has none."""
        self._pause()
        score = mean_and_std(trial.mean, trial.std, measure)
        told = f"failed: {trial.reason}" if trial.reason else f"validation {measure} {score}"
        lost = sum(run.lost for run in trial.runs)
        more = f" ({lost} replies failed or were refused)" if lost else ""
        line = f"{trial.number}/{trials} {name_of(trial.point)}: {told}{more}"
        self.console.print(escape(line), highlight=False, soft_wrap=True)

    def _pause(self) -> None:
        if self._bar.live.is_started:
            self._bar.stop()

    def _tell(self, failure: Failure) -> None:
        """Leave it to the run's events: clients that diverge are part of a search."""

    def _result(self, report: RoundReport) -> str:
        return ""

    def _line_due(self, report: RoundReport) -> bool:
        return False
