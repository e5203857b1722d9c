"""What federating is measured against: the same clients training alone, in a run of its own inside the run's folder."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from intarsia.core import RunFolderError
from intarsia.data import who_holds_what
from intarsia.experiment.build import Experiment
from intarsia.experiment.given import Given
from intarsia.experiment.settings import Settings, with_values
from intarsia.federation import Observer
from intarsia.methods.local import Local
from intarsia.runs import SETTINGS, RunFolder

FOLDER = "baseline-local"
"""The folder, in the run's, of the run without federation."""


def alone(experiment: Experiment, given: Given, folder: Path, observer: Observer) -> list[dict[str, Any]]:
    """Return what clients are worth that train alone, if the settings ask for it: played, gone on with, or read."""
    settings = experiment.settings
    if settings.evaluation.baseline != Local.name or settings.method["name"] == Local.name:
        return []
    path = folder / FOLDER
    own = RunFolder.reopen(path) if (path / SETTINGS).exists() else None
    try:
        lone = Experiment.build(_alone(settings), dataclasses.replace(given, method=None)).with_shared_data()
        if own is None:
            own = RunFolder.create(path, lone.settings.to_toml())
            own.write_population(who_holds_what(lone.setup.population))
        observer.playing(f"baseline: {Local.title}")
        _play(lone, own, observer)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"Stopped in the baseline. To go on: intarsia resume {folder}") from None
    finally:
        if own is not None:
            own.close()
    observer.playing("")
    return own.rows("judged")


def _play(lone: Experiment, folder: RunFolder, observer: Observer) -> None:
    if folder.settings_text != lone.settings.to_toml():
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
    evaluation = {"every": settings.rounds, "metrics": metrics, "baseline": "none"}
    name = f"{settings.name}-{FOLDER}"
    changed = {"codec": {"name": "none"}, "start_from": "", "evaluation": evaluation, "name": name}
    return with_values(settings, {**apart, **changed})
