"""Runs on a cluster: what its workers build the setup from, and what must be said before."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from intarsia.core import SettingsError, parse_toml
from intarsia.engines import Engine
from intarsia.experiment.given import Given
from intarsia.experiment.plugged import with_plugins
from intarsia.experiment.settings import TLS, EngineSettings, Settings, check
from intarsia.runs import SETTINGS, RunFolder
from intarsia.setup import Setup

if TYPE_CHECKING:
    from intarsia.engines.cluster.jobs import Outcome
    from intarsia.engines.cluster.members import Tls


@dataclasses.dataclass(frozen=True)
class SetupRecipe:
    """What a worker of a cluster builds its setup from: the complete settings, and what was given in Python."""

    settings: str
    given: Given

    def __call__(self) -> Setup:
        """Build the setup."""
        from intarsia.experiment.build import Experiment

        settings = check(parse_toml(self.settings, "the settings of the run"))
        settings = settings.model_copy(update={"engine": EngineSettings("debug", 0, settings.engine.device)})
        return Experiment.build(with_plugins(settings), self.given).setup


@dataclasses.dataclass(frozen=True)
class RunJob:
    """A whole run as a job for one worker of a cluster: begun, or gone on with."""

    settings: str
    given: Given

    def __call__(self, folder: Path) -> None:
        """Run it in this folder."""
        from intarsia.experiment.run import resume, start

        settings = check(parse_toml(self.settings, "the settings of the run"))
        engine = EngineSettings("local", 1, settings.engine.device)
        if (folder / SETTINGS).exists():
            resume(folder, engine=vars(engine), **vars(self.given))
        else:
            start(settings.model_copy(update={"engine": engine}), self.given, folder)


def run_on_cluster(
    engine: EngineSettings, runs: Mapping[Path, Settings], given: Given, told: Callable[[str], object]
) -> dict[Path, Outcome]:
    """Let the cluster that an engine names do whole runs, one a worker; return what went wrong, by folder."""
    from intarsia.engines.cluster.jobs import ClusterJob, spread

    check_cluster(dataclasses.replace(engine, name="dask"))
    jobs = [ClusterJob(str(path), RunJob(own.to_toml(), given), path) for path, own in runs.items()]
    failed = {}
    for number, outcome in enumerate(spread(engine.scheduler, tls_of(engine), jobs), 1):
        told(f"{number} of {len(jobs)} runs at {engine.scheduler}: {outcome.job.folder.name}")
        if outcome.kind:
            failed[outcome.job.folder] = outcome
    return failed


def cluster_engine(settings: Settings, setup: Setup, given: Given, folder: RunFolder) -> Engine:
    """Start the engine on a cluster."""
    from intarsia.engines.cluster.engine import DaskEngine

    chosen = settings.engine
    recipe = SetupRecipe(settings.to_toml(), given)
    where = (chosen.scheduler, tls_of(chosen))
    return DaskEngine(setup, folder.store, recipe, *where, chosen.device, chosen.workers)


def tls_of(engine: EngineSettings) -> Tls | None:
    """Return what connections to a cluster are encrypted by, if they are."""
    from intarsia.engines.cluster.members import Tls

    return Tls(engine.ca, engine.certificate, engine.key) if engine.ca else None


def check_cluster(engine: EngineSettings) -> None:
    """Say early what is missing to reach a cluster."""
    if engine.name != "dask":
        return
    if not engine.scheduler:
        raise SettingsError(
            'engine.scheduler: engine "dask" needs the address of a scheduler, for example "tcp://127.0.0.1:8786"; '
            "to try it here: intarsia cluster up"
        )
    missing = [name for name in TLS if not getattr(engine, name)]
    if missing and (len(missing) < len(TLS) or engine.scheduler.startswith("tls:")):
        raise SettingsError(
            f"engine.{missing[0]}: TLS needs all of {', '.join(TLS)}: give the path of this file too"
        )
