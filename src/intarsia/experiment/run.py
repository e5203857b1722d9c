"""Running, going on, opening: a run on disk, its tables and its clients' models."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, SupportsIndex

import torch
from torch import nn

from intarsia.blocks import Address, Block
from intarsia.clients import ClientRuntime
from intarsia.core import (
    AddressError,
    DataError,
    SettingsError,
    file_name,
    in_words,
    one_thread,
    suggest,
)
from intarsia.data import ClientInfo, who_holds_what
from intarsia.experiment.build import Experiment
from intarsia.experiment.earlier import Earlier
from intarsia.experiment.given import Data, Given, Models, asked
from intarsia.experiment.length import of_length, tell_what_length_changes
from intarsia.experiment.same_data import build_again
from intarsia.experiment.settings import Settings, Source, load
from intarsia.federation import Observer, Planner
from intarsia.methods import EVALUATE, Method
from intarsia.runs import RunFolder, RunState


class Run:
    """A run on disk: its summary, its tables, and its clients with their own models."""

    def __init__(self, folder: RunFolder, experiment: Experiment | None = None) -> None:
        self._folder = folder
        self._experiment = experiment

    @property
    def path(self) -> Path:
        """The run folder."""
        return self._folder.path

    @property
    def settings(self) -> Settings:
        """The complete settings."""
        return load(self.path / "settings.toml")

    @property
    def summary(self) -> dict[str, Any]:
        """The result, as `summary.json` holds it."""
        return self._folder.summary()

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """One row a round, client, split and stage; `pandas.DataFrame(run.metrics)` makes a frame of it."""
        return self._folder.rows("metrics")

    @property
    def traffic(self) -> list[dict[str, Any]]:
        """One row a message and block."""
        return self._folder.rows("traffic")

    @property
    def events(self) -> list[dict[str, Any]]:
        """One row a client that failed or an update that was refused."""
        return self._folder.rows("events")

    @property
    def groups(self) -> list[dict[str, Any]]:
        """One row a client that moved to another group."""
        return self._folder.rows("groups")

    @property
    def notes(self) -> list[dict[str, Any]]:
        """What the method recorded of its rounds, by `kind`."""
        return self._folder.rows("notes")

    @property
    def seconds(self) -> list[dict[str, Any]]:
        """One row a round: what its time went into; the one table that differs when a run is repeated."""
        return self._folder.rows("seconds")

    @property
    def population(self) -> dict[str, Any]:
        """Who holds what: attributes, counts and labels of every client."""
        return self._folder.population()

    def state(self, round: int | None = None) -> RunState:
        """Return all that the run was after a round that has a checkpoint (None: the last): pool, groups, clients."""
        return self._folder.state_at(round)

    def block(self, address: str, round: int | None = None) -> Block:
        """Return a shared block, as `base@all`, after a round that has a checkpoint (None: the last)."""
        pool = self.state(round).pool
        present = pool.present(Address.parse(address))
        if present not in pool:
            raise AddressError(f"the run has no block {address}{suggest(address, [str(a) for a in pool])}")
        return pool.get(present)

    def initial_blocks(self) -> dict[str, dict[str, Block]]:
        """Return the blocks that every model started from, by the model's key."""
        return self._folder.initial_blocks(self.state())

    @property
    def clients(self) -> list[str]:
        """The names of all clients."""
        return list(self.experiment.setup.population.clients)

    @property
    def experiment(self) -> Experiment:
        """The setup of the run, built again from its settings where it is not at hand."""
        if self._experiment is None:
            self._experiment = Experiment.build(self.settings)
        return self._experiment

    def client(self, name: str) -> RunClient:
        """Return one client of the run."""
        if name not in self.experiment.setup.population.clients:
            raise DataError(f"the run has no client '{name}'{suggest(str(name), self.clients)}")
        return RunClient(self, name)


@dataclasses.dataclass(frozen=True)
class RunClient:
    """One client of a run."""

    run: Run
    name: str

    @property
    def info(self) -> ClientInfo:
        """What is known of the client."""
        return self.run.experiment.setup.population.clients[self.name].info

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """The client's rows of the metrics."""
        return [row for row in self.run.metrics if row["client"] == self.name]

    def own_blocks(self, round: int | None = None) -> dict[str, Block]:
        """Return what never left the client: its private blocks, and what its method keeps with it, by name."""
        records = self.run.state(round).clients
        state = records[self.name].state if self.name in records else {}
        store = self.run._folder.store
        return {name: store.get(version) for name, version in state.get("private", {}).items()}

    def model(self, round: int | None = None) -> nn.Module:
        """Return the client's own model after the last round, or another that has a checkpoint.

        After a round without evaluation a client of FedMN has the gates of the last one; before the first, all are
        open.
        """
        if not isinstance(round, SupportsIndex | None):
            raise SettingsError(f"round: give its number, not {in_words(round)}")
        folder = self.run._folder
        state = folder.state_at(round)
        setup = self.run.experiment.beginning_as(folder, state).setup
        planner = Planner(setup, self.run.experiment.settings.sampling)
        exchange = setup.method.own(planner.server(state))
        plan = planner.plan(exchange, {self.name: 1}, planner.addresses(state), EVALUATE)
        (job,), content = planner.jobs(state, plan, exchange)
        runtime = ClientRuntime(setup, folder.store, "cpu")
        with one_thread(), torch.inference_mode(False), torch.enable_grad():
            return runtime.own_model(job.task, job.state, content.__getitem__)


def run(
    settings: Source = "quickstart",
    *,
    data: Data | None = None,
    model: Models | None = None,
    method: Method | None = None,
    changes: Iterable[str] = (),
    out: str | Path | None = None,
    observer: Observer | None = None,
) -> Run:
    """Run a federation from settings (a recipe's name, a TOML file, a dict) and return the run.

    `data` is a dict of clients (see `intarsia.from_dict`). `model` is any `nn.Module`; or a dict of them by
    the client's attribute `model` or `device`; or a function of the client, called once for all clients that
    are alike in shape and attributes. `method` is a `Method` of one's own: it stands in place of `method`, `sharing`,
    `objective` and `merge` in the settings. `changes` are settings as `training.lr=0.1`, put above all that; `out` is
    the run folder (by default a new one under `runs/`).
    """
    given = Given(data, model, method)
    return start(asked(settings, changes, given), given, out, observer)


def start(
    settings: Settings, given: Given, out: str | Path | None = None, observer: Observer | None = None
) -> Run:
    """Run a federation from settings that are about what is given, and return the run."""
    _check_observer(observer)
    experiment = Experiment.build(settings, given).check().with_shared_data()
    earlier = Earlier.of(experiment)
    path = path_of(out, "out") if out is not None else fresh_folder(Path("runs"), experiment.settings.name)
    folder = RunFolder.create(path, experiment.settings.to_toml())
    population = experiment.setup.population
    folder.write_population({**who_holds_what(population), "splits": population.split_hashes})
    return _play(experiment, folder, earlier.start(folder) if earlier else None, observer)


def resume(
    path: str | Path,
    *,
    data: Data | None = None,
    model: Models | None = None,
    method: Method | None = None,
    rounds: int | None = None,
    engine: Mapping[str, Any] | None = None,
    observer: Observer | None = None,
) -> Run:
    """Go on with a run that was stopped, and end with exactly what it would have been.

    With `rounds` it goes on to another end, past the one that it had too: as a run of so many rounds would have been;
    where a setting depends on their number, a warning names it.

    What was given in Python to `run` must be given again (a model's initial weights and a method's settings come
    from the run). The engine may be another one (`{"name": "debug"}`, `{"workers": 1}`): results do not depend on it.
    """
    if not isinstance(engine, Mapping | None):
        raise SettingsError(f'engine: give a dict, for example {{"name": "debug"}}, not {in_words(engine)}')
    _check_observer(observer)
    folder = RunFolder.reopen(path_of(path, "path"))
    try:
        changes = [f"engine.{key}={value}" for key, value in (engine or {}).items()]
        settings = load(folder.path / "settings.toml")
        settings = settings.model_copy(update={"engine": load(settings, changes).engine})
        settings = of_length(settings, rounds, folder)
        experiment = build_again(settings, Given(data, model, method), folder).check().with_shared_data()
        if rounds is not None:
            folder.set_rounds(rounds)
        state = folder.restore()
        if state is not None:
            tell_what_length_changes(experiment, folder, state)
            experiment = experiment.beginning_as(folder, state)
        elif (earlier := Earlier.of(experiment)) is not None:
            state = earlier.start(folder)
    except BaseException:
        folder.close()
        raise
    return _play(experiment, folder, state, observer)


def open_run(
    path: str | Path,
    *,
    data: Data | None = None,
    model: Models | None = None,
    method: Method | None = None,
) -> Run:
    """Open a run folder to read; what was given in Python to `run` must be given again for its models."""
    folder = RunFolder(path_of(path, "path"))
    _ = folder.settings_text
    given = Given(data, model, method)
    experiment = None if given == Given() else build_again(load(folder.path / "settings.toml"), given, folder)
    return Run(folder, experiment)


def _play(
    experiment: Experiment, folder: RunFolder, state: RunState | None, observer: Observer | None
) -> Run:
    try:
        experiment.play(folder, state, observer)
    finally:
        folder.close()
    return Run(folder, experiment)


def path_of(path: Any, what: str) -> Path:
    """Return a path that was given as text or as a path."""
    if not isinstance(path, str | os.PathLike):
        raise SettingsError(f"{what}: give a path, not {in_words(path)}")
    return Path(path)


def _check_observer(observer: Any) -> None:
    if not isinstance(observer, Observer | None):
        raise SettingsError(
            f"observer: give an object of a class of intarsia.Observer, not {in_words(observer)}"
        )


def fresh_folder(parent: Path, name: str) -> Path:
    """Return the first folder `name-1`, `name-2`, ... in a folder that is not there yet."""
    name, number = file_name(name).lstrip(".-") or "run", 1
    while (parent / f"{name}-{number}").exists():
        number += 1
    return parent / f"{name}-{number}"
