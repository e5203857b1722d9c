"""Live progress of a run in a terminal; plain lines where there is none."""

from __future__ import annotations

from types import TracebackType

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar

from intarsia.engines import Reply
from intarsia.federation import Observer, RoundReport
from intarsia.report import percent, size


class Progress(Observer):
    """Shows rounds, clients, accuracy and bytes; reports every client that fails, with its traceback."""

    def __init__(self, console: Console, title: str = "") -> None:
        self.console = console
        self.title = title
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

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

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
            failure = reply.failure
            self.console.print(f"[yellow]{failure.kind}[/] {escape(failure.message)}", soft_wrap=True)
            if failure.details and failure.details not in self._told:
                self._told.add(failure.details)
                self.console.print(escape(failure.details), style="dim", highlight=False)

    def round_done(self, report: RoundReport) -> None:
        """Show the result of a round."""
        sent = size(report.bytes["up"] + report.bytes["down"])
        accuracy = percent(report.accuracy.get("mean")) if report.accuracy else ""
        result = f"accuracy {accuracy}  sent {sent}" if accuracy else f"sent {sent}"
        self._bar.update(self._task, completed=report.round, result=result)
        if not self.console.is_terminal and self._line_due(report):
            title = f"{self.title}: " if self.title else ""
            self.console.print(f"{title}round {report.round}/{report.rounds}  {result}", highlight=False)

    def _line_due(self, report: RoundReport) -> bool:
        every = max(1, report.rounds // 10)
        return report.round % every == 0 or report.round == report.rounds
