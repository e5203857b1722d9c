"""The search: every point runs as a federation of its own, and validation data chooses among them.

    tune.json    what is searched: grid, ranges, settings, seeds, and the rule of choice
    trials.json  one row a trial: its point, its score with each seed, mean, deviation and state
    best.toml    the complete settings of the best point, to run
    trials/      a run folder for each trial and seed

The run folders are the truth: a search that goes on reads what has ended and resumes what has not.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from intarsia.core import (
    CheckpointError,
    IntarsiaError,
    RunFolderError,
    SettingsError,
    TuningError,
    write_atomically,
)
from intarsia.data import Population
from intarsia.engines.dealing import DIED
from intarsia.experiment import (
    Data,
    Experiment,
    Given,
    Models,
    Run,
    Settings,
    Source,
    asked,
    chosen_seeds,
    flat,
    fresh_folder,
    load,
    open_run,
    path_of,
    population_of,
    resume,
    start,
    unlike_settings,
    with_plugins,
    with_values,
)
from intarsia.experiment.clustered import run_on_cluster
from intarsia.federation import accuracy_of, loss_of
from intarsia.methods import EVALUATE, OWN, Method
from intarsia.runs import SETTINGS, SUMMARY, lock
from intarsia.tuning.results import Trial, TrialRun, Tuning, TuningObserver, ranked
from intarsia.tuning.space import Point, Range, Space, name_of

if TYPE_CHECKING:
    from intarsia.engines.cluster.jobs import Outcome

FORMAT = 1
TUNE, TRIALS, BEST, LOCK = "tune.json", "trials.json", "best.toml", ".lock"
VALIDATION = "validation"
RULES = ("last", "best")
"""Which round of a run counts: its last, or its best on validation data."""


def tune(
    settings: Source = "quickstart",
    *,
    grid: Mapping[str, Iterable[Any]] | None = None,
    ranges: Mapping[str, Range | tuple[Any, ...]] | None = None,
    random: int | None = None,
    seeds: int | Sequence[int] = 1,
    by: str = "last",
    data: Data | None = None,
    model: Models | None = None,
    method: Method | None = None,
    changes: Iterable[str] = (),
    out: str | Path | None = None,
    observer: TuningObserver | None = None,
    scheduler: str = "",
) -> Tuning:
    """Search over settings, choose on validation data, and return what was found.

    `grid` has a list of values by setting (`{"training.lr": [0.01, 0.1]}`): all combinations are tried, or
    with `random` that many of them. `ranges`, for random search, have `(low, high)` or `(low, high, "log")`.
    `seeds` is a number, counted from the settings' seed, or the seeds themselves; the mean over them counts.
    A run is scored in its last round, or with `by="best"` in its best round on validation data. The same
    call with the same `out` goes on where it was stopped. With `scheduler` (`tcp://HOST:PORT`) the runs are spread over
    a cluster, one a worker. The other arguments are those of `intarsia.run`.
    """
    if not isinstance(observer, TuningObserver | None):
        raise SettingsError(
            f"observer: give an object of a class of intarsia.TuningObserver, not {observer!r}"
        )
    given = Given(data, model, method)
    base = with_plugins(asked(settings, changes, given))
    space = Space.of(grid or {}, ranges or {}, random)
    given.check_changes(space.axes)
    if by not in RULES:
        raise SettingsError(f"a run is scored by its last or its best round, not by '{by}'")
    points = space.points(base.seed)
    checked = _check(base, points, given)
    path = path_of(out, "out") if out is not None else fresh_folder(Path("runs"), f"tune-{base.name}")
    search = _Search(path, base, given, space, by, chosen_seeds(seeds, base.seed), checked, observer)
    with _claim(path, search.record):
        return search.run(points, scheduler)


@dataclass(frozen=True)
class _Checked:
    """What is known of all points before anything runs."""

    measure: str
    splits: tuple[str, ...]


@dataclass
class _Search:
    path: Path
    base: Settings
    given: Given
    space: Space
    by: str
    seeds: tuple[int, ...]
    checked: _Checked
    observer: TuningObserver | None
    trials: list[Trial] = field(default_factory=list)
    failed: Mapping[Path, Outcome] = field(default_factory=dict)
    """What went wrong with runs on a cluster."""

    @property
    def record(self) -> dict[str, Any]:
        """What makes this search the same as another, as `tune.json` holds it."""
        record = {
            "format": FORMAT,
            **self.space.to_json(),
            "seeds": self.seeds,
            "choice": {"split": VALIDATION, "measure": self.checked.measure, "round": self.by},
            "split_hash": self.checked.splits[0],
            "settings": self.base.model_dump(mode="json"),
        }
        return dict(json.loads(json.dumps(record)))

    def run(self, points: Sequence[Point], scheduler: str = "") -> Tuning:
        """Play the trials that are left, choose, and write the result."""
        self.trials = [Trial(n, point, self.seeds) for n, point in enumerate(points, 1)]
        try:
            if scheduler:
                self._spread(scheduler)
            for index in range(len(self.trials)):
                self._try(index)
        except KeyboardInterrupt:
            done = sum(trial.state != "waiting" for trial in self.trials)
            raise KeyboardInterrupt(
                f"Stopped after {done} of {len(self.trials)} trials; what is done is kept in {self.path}. "
                f"To go on, give the same command with --out {self.path}"
            ) from None
        return self._choose()

    def _spread(self, scheduler: str) -> None:
        """Let a cluster do all runs that have not ended, one a worker."""
        runs = {
            path: self._of_seed(trial, seed)
            for trial in self.trials
            for seed in self.seeds
            if self._ended(path := self.path / self._folder(trial, seed)) is None
        }
        engine = replace(self.base.engine, scheduler=scheduler)
        self.failed = run_on_cluster(engine, runs, self.given, (self.observer or TuningObserver()).playing)

    def _try(self, index: int) -> None:
        """Play one trial, seed by seed; one that failed needs no further seeds."""
        for seed in self.seeds:
            trial = self.trials[index]
            played = self._outcome(trial, seed)
            self.trials[index] = replace(trial, runs=(*trial.runs, played))
            self._write_trials()
            if played.reason:
                break
        if self.observer:
            self.observer.trial_done(self.trials[index], len(self.trials), self.checked.measure)

    def _outcome(self, trial: Trial, seed: int) -> TrialRun:
        """Play a run, or read one that has ended; what goes wrong in it is its outcome."""
        folder = self._folder(trial, seed)
        if (self.path / folder) in self.failed:
            return TrialRun(seed, folder, reason=self.failed[self.path / folder].message)
        try:
            done = self._ended(self.path / folder) or self._play(trial, seed, self.path / folder)
            score, round = _score(done, self.checked.measure, self.by)
        except (RunFolderError, CheckpointError):
            raise
        except IntarsiaError as error:
            return TrialRun(seed, folder, reason=str(error.__cause__ or error))
        lost = done.summary["failed"] + done.summary["refused"]
        return TrialRun(seed, folder, score, round, lost=lost)

    def _ended(self, path: Path) -> Run | None:
        if not (path / SUMMARY).exists():
            return None
        found = open_run(path)
        return found if found.summary["finished"] else None

    def _play(self, trial: Trial, seed: int, path: Path) -> Run:
        if self.observer:
            self.observer.run_started(trial, seed, len(self.trials))
        if (path / SETTINGS).exists():
            return resume(path, engine=vars(self.base.engine), observer=self.observer, **vars(self.given))
        return start(self._of_seed(trial, seed), self.given, path, self.observer)

    def _of_seed(self, trial: Trial, seed: int) -> Settings:
        return with_values(self._settings(trial), {"seed": seed, "checkpoints.keep": 1})

    def _settings(self, trial: Trial) -> Settings:
        return with_values(self.base, trial.point)

    def _folder(self, trial: Trial, seed: int) -> str:
        number = str(trial.number).zfill(len(str(len(self.trials))))
        point = re.sub(r"[^\w.=+,-]+", "_", name_of(trial.point))[:80]
        return f"trials/{number}-{point}-seed-{seed}"

    def _write_trials(self) -> None:
        _write_json(self.path / TRIALS, [trial.row for trial in self.trials])

    def _choose(self) -> Tuning:
        best = ranked(self.trials, self.checked.measure)[0]
        if best.state != "done":
            raise TuningError(
                f"every trial failed ({len(self.trials)}), see {self.path / TRIALS}; the first, "
                f"{name_of(best.point)}: {best.reason}"
            )
        wanted = self._settings(best)
        update = {"checkpoints": wanted.checkpoints, "engine": wanted.engine}
        settings = load(self.path / best.runs[0].folder / SETTINGS).model_copy(update=update)
        write_atomically(self.path / BEST, settings.to_toml().encode())
        warnings = (*self.space.edges(best.point), *self._unlike_data())
        return Tuning(self.path, self.checked.measure, self.by, tuple(self.trials), settings, warnings)

    def _unlike_data(self) -> list[str]:
        if len(self.checked.splits) == 1:
            return []
        return ["the points have different data: their scores are not of the same validation samples"]


def _score(done: Run, measure: str, by: str) -> tuple[float, int]:
    """Return the mean over clients of their own models on validation data, and the round that it is of.

    A round counts only if every client was evaluated and every loss is a number: means over different
    clients cannot be compared.
    """
    by_round: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for row in done.metrics:
        if row["split"] == VALIDATION and row["stage"] == OWN:
            by_round[row["round"]].append(row)
    broken = _broken(done, by_round)
    rounds = [done.summary["rounds"]] if by == "last" else sorted(by_round)
    average: Callable[..., dict[str, float]] = accuracy_of if measure == "accuracy" else loss_of
    scores = {
        r: average(by_round[r], r, VALIDATION)["mean"] for r in rounds if r in by_round and r not in broken
    }
    if not scores:
        raise TuningError(next(iter(broken.values()), "no client has a validation score"))
    best = (max if measure == "accuracy" else min)(scores, key=scores.__getitem__)
    return scores[best], best


def _broken(done: Run, by_round: Mapping[int, Iterable[Mapping[str, Any]]]) -> dict[int, str]:
    """Say what is wrong with each round whose scores cannot be used."""
    broken = {
        number: f"round {number}: the validation loss of client '{row['client']}' is not finite"
        for number, rows in by_round.items()
        for row in rows
        if row["loss"] is None
    }
    lost = [e for e in done.events if e["exchange"] == EVALUATE and e["kind"] != DIED]
    failures = {e["round"]: e["message"] for e in lost}
    return broken | failures


def _check(base: Settings, points: Iterable[Point], given: Given) -> _Checked:
    """Build every point once, on data that is read once, so that a wrong one is told before any runs."""
    populations: dict[str, Population] = {}
    measures, splits = {}, {}
    for point in points:
        try:
            settings = with_values(base, point)
            data = (settings.population, settings.public, settings.data_folder)
            source = json.dumps([*data, settings.training.loss])
            if source not in populations:
                populations[source] = population_of(settings, given.data)
                _check_validation(populations[source], given)
            built = Experiment.build(settings, replace(given, data=populations[source]))
        except IntarsiaError as error:
            raise SettingsError(f"point {name_of(point)}: {error}") from error
        counted = any(loss.hits is not None for loss in built.setup.losses.values())
        measures["accuracy" if counted else "loss"] = point
        splits[built.settings.split_hash] = point
    if len(measures) > 1:
        raise SettingsError("some points have an accuracy and some only a loss: they cannot be compared")
    return _Checked(next(iter(measures)), tuple(splits))


def _check_validation(population: Population, given: Given) -> None:
    if any(info.samples.get(VALIDATION) for info in population.infos):
        return
    cure = "set population.validation, for example to 0.2 (--set population.validation=0.2)"
    if given.data is not None:
        cure = "give the clients a split 'validation'"
    raise SettingsError(f"no client has validation data, and a search never chooses on test data: {cure}")


def _claim(path: Path, record: Mapping[str, Any]) -> IO[bytes]:
    """Take the folder for this search, and keep others out until the file returned is closed."""
    known = path / TUNE
    if path.exists() and not known.exists() and _in_use(path):
        raise RunFolderError(f"{path} is used, and not by a search: choose another folder (--out DIR)")
    path.mkdir(parents=True, exist_ok=True)
    mine = lock(path / LOCK, f"{path} is in use by a search that has not ended")
    try:
        if known.exists():
            _check_same(path, _recorded(known), record)
        else:
            _write_json(known, record)
    except BaseException:
        mine.close()
        raise
    return mine


def _recorded(path: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(path.read_bytes()))
    except (ValueError, TypeError) as error:
        raise RunFolderError(f"{path} is damaged ({error}): choose another folder (--out DIR)") from error


def _in_use(path: Path) -> bool:
    return not path.is_dir() or any(entry.name != LOCK for entry in path.iterdir())


def _check_same(path: Path, there: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Refuse another search than the one that was recorded; only the engine may be another one."""
    unlike = unlike_settings(flat(there), flat(now), "settings.engine.")
    if unlike:
        raise RunFolderError(
            f"{path} holds another search: give the same one to go on, or choose another folder "
            "(--out DIR):\n" + "\n".join(unlike)
        )


def _write_json(path: Path, content: Any) -> None:
    write_atomically(path, (json.dumps(content, indent=2) + "\n").encode())
