"""Trials of a search and what came of them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from intarsia.experiment import Settings
from intarsia.federation import Observer
from intarsia.tuning.space import Point


@dataclass(frozen=True)
class TrialRun:
    """One run of a trial: its score, or the reason why it has none."""

    seed: int
    folder: str
    score: float | None = None
    round: int | None = None
    """The round that the score is of."""
    reason: str = ""
    lost: int = 0
    """Replies of clients that failed or were refused."""


@dataclass(frozen=True)
class Trial:
    """A point and its runs, one a seed; it fails as a whole if one of them fails."""

    number: int
    point: Point
    seeds: tuple[int, ...]
    runs: tuple[TrialRun, ...] = ()

    @property
    def reason(self) -> str:
        """Why the trial failed; nothing if it did not."""
        return next((run.reason for run in self.runs if run.reason), "")

    @property
    def state(self) -> str:
        """`done`, `failed` or `waiting`."""
        if self.reason:
            return "failed"
        return "done" if len(self.runs) == len(self.seeds) else "waiting"

    @property
    def mean(self) -> float | None:
        """The mean score over the seeds, once all have run."""
        return fmean(self._scores) if self.state == "done" else None

    @property
    def std(self) -> float | None:
        """The sample standard deviation over the seeds; none for a single one."""
        return stdev(self._scores) if self.state == "done" and len(self.seeds) > 1 else None

    @property
    def row(self) -> dict[str, Any]:
        """The trial as plain values, as `trials.json` holds it."""
        return {
            "trial": self.number,
            "point": self.point,
            "state": self.state,
            "mean": self.mean,
            "std": self.std,
            "reason": self.reason,
            "runs": [asdict(run) for run in self.runs],
        }

    @property
    def _scores(self) -> list[float]:
        return [run.score for run in self.runs if run.score is not None]


@dataclass(frozen=True)
class Tuning:
    """What a search has found."""

    path: Path
    measure: str
    """`accuracy`, or `loss` for regression: the mean over clients on validation data."""
    by: str
    """Which round of a run counts: `last` or `best`."""
    trials: tuple[Trial, ...]
    """All trials, in the order of the search."""
    settings: Settings
    """The complete settings of the best point, to run."""
    warnings: tuple[str, ...] = ()

    @property
    def ranked(self) -> list[Trial]:
        """The trials, best first; equal ones in the order of the search, failed ones last."""
        return ranked(self.trials, self.measure)

    @property
    def best(self) -> Trial:
        """The trial with the best mean score; the first of equal ones."""
        return self.ranked[0]

    @property
    def table(self) -> list[dict[str, Any]]:
        """One row a trial, best first."""
        return [trial.row for trial in self.ranked]

    def to_json(self) -> dict[str, Any]:
        """Return the result as plain values."""
        return {
            "folder": str(self.path),
            "measure": self.measure,
            "by": self.by,
            "best": self.best.row,
            "settings": self.settings.model_dump(mode="json"),
            "warnings": list(self.warnings),
            "trials": self.table,
        }


class TuningObserver(Observer):
    """Told of what happens in a search, and in each of its runs; every method may be left out."""

    def run_started(self, trial: Trial, seed: int, trials: int) -> None:
        """Say that a run starts or goes on."""

    def trial_done(self, trial: Trial, trials: int, measure: str) -> None:
        """Say that a trial is done or has failed."""


def ranked(trials: Iterable[Trial], measure: str) -> list[Trial]:
    """Return trials from the best to the worst."""
    sign = -1 if measure == "accuracy" else 1
    return sorted(trials, key=lambda t: (t.mean is None, sign * (t.mean or 0.0)))
