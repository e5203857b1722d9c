"""The same experiment with several seeds: a folder of runs, and what they come to."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import index
from pathlib import Path
from typing import TYPE_CHECKING, Any

from intarsia.core import RunFolderError, SettingsError, write_atomically
from intarsia.core.text import flat
from intarsia.experiment.comparison import comparison
from intarsia.experiment.frames import pandas_for
from intarsia.experiment.given import Given
from intarsia.experiment.opened import Run
from intarsia.experiment.run import fresh_folder, open_run, path_of, resume, start
from intarsia.experiment.settings import Settings, with_values
from intarsia.federation import Observer
from intarsia.runs import SETTINGS, SUMMARY, lock

if TYPE_CHECKING:
    import pandas

RECORD, LOCK = "seeds.json", ".lock"


@dataclass(frozen=True)
class SeedRuns:
    """Runs of one experiment, one a seed, and what they come to."""

    path: Path
    runs: Sequence[Run]

    @property
    def summary(self) -> dict[str, Any]:
        """Mean, deviation and costs over the seeds."""
        return comparison(self.runs)[0]

    def frame(self, table: str = "metrics") -> pandas.DataFrame:
        """Return a table of all runs as one pandas frame, with the seed in its first column (see `Run.frame`)."""
        frames = {run.settings.seed: run.frame(table) for run in self.runs}
        joined = pandas_for("frame").concat(frames, names=["seed"])
        return joined.reset_index("seed").reset_index(drop=True)


def chosen_seeds(seeds: int | Sequence[int], first: int) -> tuple[int, ...]:
    """Return seeds that are given as a number of them, counted from the first, or as a list."""
    try:
        chosen = tuple(range(first, first + seeds)) if isinstance(seeds, int) else tuple(map(index, seeds))
    except TypeError:
        chosen = (-1,)
    if min(chosen, default=0) < 0:
        raise SettingsError(
            f"seeds: give a number of them, or a list of whole numbers from 0 on, not {seeds!r}"
        )
    if not chosen or len(set(chosen)) < len(chosen):
        raise SettingsError(f"seeds: give at least one, and none of them twice (got {seeds})")
    return chosen


def run_seeds(
    settings: Settings,
    given: Given,
    seeds: int | Sequence[int],
    out: str | Path | None = None,
    observer: Observer | None = None,
    progress: bool | None = None,
) -> SeedRuns:
    """Run an experiment once a seed, in folders `seed-0`, `seed-1`, ...; the same call with the same folder goes on."""
    chosen = chosen_seeds(seeds, settings.seed)
    path = path_of(out, "out") if out is not None else fresh_folder(Path("runs"), settings.name)
    if path.exists() and not (path / RECORD).exists() and _in_use(path):
        raise RunFolderError(
            f"{path} is used, and not by runs of several seeds: choose another folder (--out DIR)"
        )
    path.mkdir(parents=True, exist_ok=True)
    with lock(path / LOCK, f"{path} is in use by runs that have not ended"):
        _claim(path, settings)
        try:
            runs = [_play(settings, seed, given, path, observer, progress) for seed in chosen]
        finally:
            if not _begun(path):  # what was refused holds no folder
                (path / RECORD).unlink()
        found = SeedRuns(path, runs)
        _write(path, settings, found.summary)
    return found


def _play(
    settings: Settings,
    seed: int,
    given: Given,
    path: Path,
    observer: Observer | None,
    progress: bool | None,
) -> Run:
    folder = path / f"seed-{seed}"
    try:
        if (folder / SUMMARY).exists() and (done := open_run(folder)).summary["finished"]:
            return done
        if observer is not None:
            observer.playing(f"seed {seed}")
        if (folder / SETTINGS).exists():
            return resume(
                folder, engine=vars(settings.engine), observer=observer, progress=progress, **vars(given)
            )
        return start(with_values(settings, {"seed": seed}), given, folder, observer, progress)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(
            f"Stopped at seed {seed}. To go on, give the same command with --out {path}"
        ) from None


def _claim(path: Path, settings: Settings) -> None:
    """Refuse a folder of other settings; only engine and seeds may be others."""
    if not (path / RECORD).exists() or not _begun(path):
        _write(path, settings, {})
        return
    try:
        there = flat(json.loads((path / RECORD).read_bytes())["settings"])
    except (ValueError, TypeError, KeyError) as error:
        raise RunFolderError(f"{path / RECORD} is damaged: choose another folder (--out DIR)") from error
    now = flat(json.loads(settings.model_dump_json()))
    unlike = unlike_settings(there, now, "seed", "engine.")
    if unlike:
        raise RunFolderError(
            f"{path} holds runs with other settings (or choose --out DIR):\n" + "\n".join(unlike)
        )


def _begun(path: Path) -> bool:
    return any(path.glob(f"seed-*/{SETTINGS}"))


def unlike_settings(there: Mapping[str, Any], now: Mapping[str, Any], *free: str) -> list[str]:
    """Return a line for each setting that differs, but for those whose names begin so."""
    return [
        f"  {key}: {there.get(key, 'nothing')} there, {now.get(key, 'nothing')} now"
        for key in sorted(there.keys() | now.keys())
        if there.get(key) != now.get(key) and not key.startswith(free)
    ]


def _in_use(path: Path) -> bool:
    return not path.is_dir() or any(entry.name != LOCK for entry in path.iterdir())


def _write(path: Path, settings: Settings, summary: Mapping[str, Any]) -> None:
    record = {"settings": json.loads(settings.model_dump_json()), "summary": summary}
    write_atomically(path / RECORD, (json.dumps(record, indent=2) + "\n").encode())
