"""Carries out a study: every run once, stopped or not; then one table, one picture, one page."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from intarsia.core import DataError, write_atomically
from intarsia.experiment import Run, open_run, resume, run
from intarsia.federation import Observer
from intarsia.papers.record import Record
from intarsia.papers.study import Cell, Place, Scale, Study, StudyRun

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
) -> Results:
    """Run what has not been run yet, each with all its seeds; table and record are written after every run.

    `out` gets `table.json` and `record.json`; `runs` holds the run folders, which studies may share: a folder's name
    holds a hash of its settings. `settings` stand above those of the study (`data_folder`, `engine`).
    """
    results = Results(study, words, remark=study.remark(scale))
    results.record.command = command
    numbers = range(first_seed, first_seed + seeds)
    for same in zip(*(study.runs(scale, seed) for seed in numbers), strict=True):
        for seed, planned in zip(numbers, same, strict=True):
            title = f"{planned.name}, seed {seed}"
            table = {**planned.settings, **(settings or {}), "seed": seed, "name": study.name}
            try:
                done = _run_once(runs / _folder(planned, table), table, observer_of, title)
            except DataError as error:
                results.left_out[planned.name] = str(error)
                continue
            values = planned.read(done)
            results.add(values)
            results.record.add(planned.name, seed, done.path, values)
            _write_table(results, out)
    _write_table(results, out)
    return results


def _folder(planned: StudyRun, table: Mapping[str, Any]) -> str:
    """Return a folder's name that stands for exactly these settings, wherever and however they are run."""
    what = {k: v for k, v in table.items() if k not in ("data_folder", "engine", "name")}
    digest = hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()[:10]
    return f"{planned.name.lower().replace(' ', '-')}-seed{table['seed']}-{digest}"


def _run_once(path: Path, table: Mapping[str, Any], observer_of: ObserverOf | None, title: str) -> Run:
    """Return the run in this folder: ended before, gone on with, or done now."""
    if (path / "settings.toml").exists():
        there = open_run(path)
        if (path / "summary.json").exists() and there.summary["finished"]:
            return there
        return resume(path, observer=observer_of(title) if observer_of else None)
    return run(table, out=path, observer=observer_of(title) if observer_of else None)


def _write_table(results: Results, out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    text = json.dumps([asdict(cell) for cell in results.cells()], indent=1)
    write_atomically(out / "table.json", text.encode())
    results.record.write(out / RECORD)
