"""What federating is measured against: the same clients training alone, in a run of its own inside the run's folder."""

from __future__ import annotations

import dataclasses
import shutil
import tomllib
from pathlib import Path
from typing import Any

from intarsia.core import RunFolderError, differences
from intarsia.data import who_holds_what
from intarsia.experiment.build import Experiment
from intarsia.experiment.given import Given
from intarsia.experiment.settings import Settings, with_values
from intarsia.federation import Observer
from intarsia.methods.local import Local
from intarsia.runs import ROUNDS, SETTINGS, RunFolder

FOLDER = "baseline-local"
"""The folder, in the run's, of the run without federation."""
NEVER = 1_000_000_000
"""Evaluated every so many rounds, a run is evaluated after its last alone."""


def alone(experiment: Experiment, given: Given, folder: Path, observer: Observer) -> list[dict[str, Any]]:
    """Return what clients are worth that train alone, if the settings ask for it: played, gone on with, or read."""
    settings = experiment.settings
    if settings.evaluation.baseline != Local.name or settings.method["name"] == Local.name:
        return []
    path = folder / FOLDER
    own = _there(path, settings.rounds)
    try:
        lone = Experiment.build(_alone(settings), dataclasses.replace(given, method=None)).with_shared_data()
        if own is None:
            own = RunFolder.create(path, lone.settings.to_toml())
            own.write_population(who_holds_what(lone.setup.population, lone.told_of))
        observer.playing(f"baseline: {Local.title}")
        _play(lone, own, observer)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"Stopped in the baseline. To go on: intarsia resume {folder}") from None
    finally:
        if own is not None:
            own.close()
    observer.playing("")
    return own.rows("judged")


def _there(path: Path, rounds: int) -> RunFolder | None:
    """Open the baseline that there is; one that has played more rounds than the run now has is removed."""
    if not (path / SETTINGS).exists():
        return None
    own = RunFolder.reopen(path)
    if max(own.checkpoints, default=0) <= rounds:
        return own
    own.close()
    shutil.rmtree(path)
    return None


def _play(lone: Experiment, folder: RunFolder, observer: Observer) -> None:
    found = differences(tomllib.loads(folder.settings_text), tomllib.loads(lone.settings.to_toml()))
    if found.keys() == {ROUNDS}:
        folder.set_rounds(lone.settings.rounds)
    elif found:
        raise RunFolderError(f"{folder.path} is the baseline of another run: remove it, and it is made anew")
    state = folder.restore()
    if state is not None:
        lone = lone.beginning_as(folder, state)
    if state is None or state.round < lone.setup.rounds:
        lone.play(folder, state, observer)


def _alone(settings: Settings) -> Settings:
    """Return settings under which the same models train as long on the same data, each client by itself."""
    apart = {"method": {"name": Local.name}, "sharing": {}, "objective": {}, "merge": {}, "cut": {}}
    metrics = settings.evaluation.metrics or ("auto",)
    asked = settings.evaluation.clients
    evaluation = {"every": NEVER, "clients": asked, "metrics": metrics, "baseline": "none"}
    name = f"{settings.name}-{FOLDER}"
    changed = {"codec": {"name": "none"}, "start_from": "", "evaluation": evaluation, "name": name}
    return with_values(settings, {**apart, **changed})
