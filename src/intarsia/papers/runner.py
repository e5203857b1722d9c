"""Carries out a study: every run once, stopped or not; then one table, one picture, one page."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any

from intarsia.core import DataError, IntarsiaError, write_atomically
from intarsia.experiment import EngineSettings, Given, Run, load, open_run, resume, run
from intarsia.experiment.clustered import run_on_cluster
from intarsia.federation import Observer
from intarsia.papers.record import Record
from intarsia.papers.study import Cell, Place, Scale, Study, StudyRun

if TYPE_CHECKING:
    from intarsia.engines.cluster.jobs import Outcome

RECORD = "record.json"
ObserverOf = Callable[[str], Observer]


@dataclass
class Results:
    """What a study gave so far."""

    study: Study
    scale: str
    readings: dict[Place, list[float]] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    """Runs that could not be done here, and why."""
    remark: str = ""
    """What must be said with every figure of ours."""

    @cached_property
    def record(self) -> Record:
        """What every run gave."""
        return Record(self.study.name, self.scale, remark=self.remark, left_out=self.left_out)

    def add(self, values: Mapping[Place, float]) -> None:
        """Take what was read from one run."""
        for place, value in values.items():
            self.readings.setdefault(place, []).append(value)

    def cells(self) -> list[Cell]:
        """Return all figures: those without a run have none of ours."""
        readings = {**self.readings, **self.study.derived(self.readings)}
        return [self._cell(place, readings.get(place, ())) for place in self.study.order(readings)]

    def _cell(self, place: Place, own: Sequence[float]) -> Cell:
        return Cell(
            row=place[0],
            column=place[1],
            paper=self.study.paper.get(place),
            ours=fmean(own) if own else None,
            std=stdev(own) if len(own) > 1 else None,
            seeds=len(own),
            scale=self.scale,
            remark=self.remark if own else "",
        )


def carry_out(
    study: Study,
    words: str,
    scale: Scale,
    seeds: int,
    out: Path,
    runs: Path,
    *,
    first_seed: int = 0,
    command: str = "",
    settings: Mapping[str, Any] | None = None,
    observer_of: ObserverOf | None = None,
    scheduler: str = "",
    tls: Mapping[str, str] | None = None,
) -> Results:
    """Run what has not been run yet, each with all its seeds; table and record are written after every run.

    `out` gets `table.json` and `record.json`; `runs` holds the run folders, which studies may share: a folder's name
    holds a hash of its settings. `settings` stand above those of the study (`data_folder`, `engine`). With `scheduler`
    the runs are spread over a cluster, one a worker, with `tls` by these files (`ca`, `certificate`, `key`).
    """
    results = Results(study, words, remark=study.remark(scale))
    results.record.command = command
    planned = _planned(study, scale, range(first_seed, first_seed + seeds), settings or {})
    engine = EngineSettings(scheduler=scheduler, **dict[str, Any](tls or {}))
    failed = _spread(planned, runs, engine, observer_of) if scheduler else {}
    for own, table in planned:
        title, path = f"{own.name}, seed {table['seed']}", runs / _folder(own, table)
        try:
            _check_done(path, failed)
            done = _run_once(path, table, observer_of, title)
        except DataError as error:
            results.left_out[own.name] = str(error)
            continue
        values = own.read(done)
        results.add(values)
        results.record.add(own.name, table["seed"], done.path, values)
        _write_table(results, out)
    _write_table(results, out)
    return results


Planned = list[tuple[StudyRun, dict[str, Any]]]
"""Runs of a study, each with its settings."""


def _planned(study: Study, scale: Scale, seeds: Sequence[int], settings: Mapping[str, Any]) -> Planned:
    """Return all runs, those that differ by their seed alone one after the other."""
    return [
        (own, {**own.settings, **settings, "seed": seed, "name": study.name})
        for same in zip(*(study.runs(scale, seed) for seed in seeds), strict=True)
        for seed, own in zip(seeds, same, strict=True)
    ]


def _spread(
    planned: Planned, runs: Path, engine: EngineSettings, observer_of: ObserverOf | None
) -> dict[Path, Outcome]:
    """Let a cluster do all runs that have not ended, one a worker; return what went wrong."""
    told = observer_of("") if observer_of else Observer()
    left = {path: load(table) for own, table in planned if not _has_ended(path := runs / _folder(own, table))}
    return run_on_cluster(engine, left, Given(), told.playing)


def _check_done(path: Path, failed: Mapping[Path, Outcome]) -> None:
    """Raise what a run on a cluster raised."""
    if path in failed:
        wrong = failed[path]
        raise (DataError if wrong.kind == DataError.__name__ else IntarsiaError)(f"{path}: {wrong.message}")


def _has_ended(path: Path) -> bool:
    return (path / "summary.json").exists() and bool(open_run(path).summary["finished"])


def _folder(planned: StudyRun, table: Mapping[str, Any]) -> str:
    """Return a folder's name that stands for exactly these settings, wherever and however they are run."""
    what = {k: v for k, v in table.items() if k not in ("data_folder", "engine", "name")}
    digest = hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()[:10]
    return f"{planned.name.lower().replace(' ', '-')}-seed{table['seed']}-{digest}"


def _run_once(path: Path, table: Mapping[str, Any], observer_of: ObserverOf | None, title: str) -> Run:
    """Return the run in this folder: ended before, gone on with, or done now."""
    if _has_ended(path):
        return open_run(path)
    if (path / "settings.toml").exists():
        return resume(path, observer=observer_of(title) if observer_of else None)
    return run(table, out=path, observer=observer_of(title) if observer_of else None)


def _write_table(results: Results, out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    text = json.dumps([asdict(cell) for cell in results.cells()], indent=1)
    write_atomically(out / "table.json", text.encode())
    results.record.write(out / RECORD)
