"""Live progress of a search in a terminal; a line a trial where there is none."""

from __future__ import annotations

from rich.markup import escape

from intarsia.core.text import mean_and_std
from intarsia.engines import Failure
from intarsia.experiment.progress import Progress
from intarsia.federation import RoundReport
from intarsia.tuning.results import Trial, TuningObserver
from intarsia.tuning.space import name_of


class TuningProgress(Progress, TuningObserver):
    """Shows the runs of a search and a line for each trial; test data is not shown, it has no say here."""

    def run_started(self, trial: Trial, seed: int, trials: int) -> None:
        """Show a new bar; the last one is stopped before the workers of this run are forked."""
        self.pause()
        seeds = f" seed {seed}" if len(trial.seeds) > 1 else ""
        title = f"{trial.number}/{trials} {name_of(trial.point)}{seeds}"
        self._bar.reset(self._task, description=escape(title), start=False, stage="", result="")

    def trial_done(self, trial: Trial, trials: int, measure: str) -> None:
        """Show the score of a trial, or why it has none."""
        self.pause()
        score = mean_and_std(trial.mean, trial.std, measure)
        told = f"failed: {trial.reason}" if trial.reason else f"validation {measure} {score}"
        lost = sum(run.lost for run in trial.runs)
        more = f" ({lost} replies failed or were refused)" if lost else ""
        line = f"{trial.number}/{trials} {name_of(trial.point)}: {told}{more}"
        self.console.print(escape(line), highlight=False, soft_wrap=True)

    def _tell(self, failure: Failure) -> None:
        """Leave it to the run's events: clients that diverge are part of a search."""

    def _result(self, report: RoundReport) -> str:
        return ""

    def _line_due(self, report: RoundReport) -> bool:
        return False
