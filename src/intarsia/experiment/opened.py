"""A run on disk: its tables, and its clients with their own models."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any, SupportsIndex

import torch
from torch import nn

from intarsia.blocks import Address, Block
from intarsia.clients import ClientRuntime
from intarsia.core import (
    AddressError,
    DataError,
    IntarsiaError,
    SettingsError,
    in_words,
    one_thread,
    some,
    suggest,
)
from intarsia.data import EVERYONE, ClientInfo, Examples, Population, label_words
from intarsia.data.preparation import Preparation, Prepared, preparations_of
from intarsia.data.recorded import DataAbsent, Form, form_from, is_complete, population_from
from intarsia.data.sources.files import Files
from intarsia.experiment.adapting import EPOCHS, Adapted, adapt
from intarsia.experiment.build import Experiment
from intarsia.experiment.given import Given
from intarsia.experiment.joining import Data as NewData
from intarsia.experiment.kept import Own, OwnModels, own_job
from intarsia.experiment.plugged import plug_in_again
from intarsia.experiment.populations import population_of
from intarsia.experiment.run_record import RunRecord
from intarsia.experiment.settings import Settings, portable
from intarsia.export import (
    Exported,
    Inputs,
    Package,
    Predictions,
    Predictor,
    Samples,
    attributes,
    export,
    places_for,
    predict_each,
)
from intarsia.judging.verdict import judged_client
from intarsia.runs import RunFolder, RunState
from intarsia.setup import Setup


class Run(RunRecord):
    """A run on disk: its summary, its tables, and its clients with their own models."""

    def __init__(
        self, folder: RunFolder, experiment: Experiment | None = None, given: Given | None = None
    ) -> None:
        super().__init__(folder)
        self._experiment = experiment
        self._given = given or Given()

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
        return self.state().initial_blocks(self._folder.store)

    @property
    def clients(self) -> list[str]:
        """The names of all clients."""
        return list(self.setup.population.clients)

    @property
    def experiment(self) -> Experiment:
        """The setup of the run with its data, built again from its settings where it is not at hand."""
        if self._experiment is None:
            self._experiment = Experiment.build(self._plugged, self._given)
        return self._experiment

    @property
    def _plugged(self) -> Settings:
        """The settings, once what they name of the user's own files is there."""
        settings = self.settings
        plug_in_again(settings, self.path)
        return settings

    @property
    def setup(self) -> Setup:
        """What clients and server agreed on; of a run that was opened, without the clients' data."""
        return self._experiment.setup if self._experiment is not None else self._opened.setup

    @functools.cached_property
    def _opened(self) -> Experiment:
        """The run as its folder alone tells it; folders of earlier versions need the data."""
        if EVERYONE in self.population:
            return self.experiment.beginning_as(self._folder, self.state())
        if not is_complete(self.population):
            return self._with_data_of_old()
        experiment = Experiment.of_clients(self._plugged, population_from(self.population), self._given)
        return experiment.beginning_as(self._folder, self.state())

    def _with_data_of_old(self) -> Experiment:
        try:
            return self.experiment
        except (DataError, OSError) as error:
            raise DataError(
                f"{self.path} does not say what its clients' models are made for (an earlier version wrote it, or the "
                f"clients are at sites of their own), so that opening them takes the data: {error}"
            ) from error

    @functools.cached_property
    def _population(self) -> Population | None:
        try:
            return population_of(self._plugged, self._given.data)
        except (IntarsiaError, OSError):
            return None

    def predict(self, samples: str | Path, *, identity: str = "") -> Predictions:
        """Predict for a table that names the client of each row: each with its own client's model, in its order."""
        return predict_each(
            samples,
            {name: self.client(name).preparation for name in self.clients},
            lambda name: Predictor.of(self.client(name).package()),
            identity,
        )

    def export(self, to: str | Path, *, force: bool = False) -> list[Exported]:
        """Write every client's own model: into a folder each, or as a name with {client} in it says."""
        places = places_for(to, self.clients)
        return [self.client(name).export(place, force=force) for name, place in places.items()]

    def adapt(
        self, data: NewData, *, name: str = "", device: str | None = None, epochs: int = EPOCHS
    ) -> Adapted:
        """Give a client that was not there a model from the run's blocks, without a new federation.

        `data` is its own, raw: a table, an .npz archive, a folder of images, or arrays (x, y). Every assembly of
        blocks that fits is tried on rows held out of its training data; the best is tuned at home for some epochs. What
        is kept is the best of it as it comes, tuned, or trained alone. The device is the one with the data's
        columns, unless it is named.
        """
        return adapt(self, data, name, device, epochs)

    def client(self, name: str) -> RunClient:
        """Return one client of the run."""
        if name not in self.setup.population.clients:
            raise DataError(f"the run has no client '{name}'; clients: {some(self.clients)}")
        return RunClient(self, name)


@dataclasses.dataclass(frozen=True)
class RunClient:
    """One client of a run."""

    run: Run
    name: str

    @property
    def info(self) -> ClientInfo:
        """What is known of the client."""
        return self.run.setup.population.clients[self.name].info

    @property
    def data(self) -> Mapping[str, Examples] | None:
        """The client's data by split, if it is at hand: given in Python, or where the settings name it."""
        run = self.run
        population = run._population if run._experiment is None else run._experiment.setup.population
        found = population.clients.get(self.name) if population is not None else None
        return found.data if found is not None else None

    @property
    def form(self) -> Form:
        """What the client's samples are, before they are scaled."""
        if is_complete(self.run.population):
            return form_from(self.run.population, self.name)
        return Form.of(self.run.experiment.setup.population.clients[self.name])

    @property
    def preparation(self) -> Prepared | None:
        """How the client's raw readings became its inputs; none where they were given ready-made."""
        found = preparations_of(self.run.population).get(self.name)
        if not isinstance(found, Preparation) or found.client:
            return found
        told = self.run.settings.population
        names = {"client": "client", **told} if told.get("name") == Files.name else {}
        kept = {key: names.get(key, "") for key in ("client", "time", "time_form")}
        return dataclasses.replace(found, **kept)  # earlier versions left these to the settings

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """The client's rows of the metrics."""
        return [row for row in self.run.metrics if row["client"] == self.name]

    def judged(self, split: str = "test") -> dict[str, Any]:
        """Return what the client's own model is worth after the last round: metrics, intervals and baselines."""
        task = self.run.population.get("clients", {}).get(self.name, {}).get("task", "")
        words = label_words(self.run.population, task)
        return judged_client(self.run.judged, self.name, split, {task: words})

    def own_blocks(self, round: int | None = None) -> dict[str, Block]:
        """Return what never left the client: its private blocks, and what its method keeps with it, by name."""
        records = self.run.state(round).clients
        state = records[self.name].state if self.name in records else {}
        store = self.run._folder.store
        return {name: store.get(version) for name, version in state.get("private", {}).items()}

    def model(self, round: int | None = None) -> nn.Module:
        """Return the client's own model after the last round, or another that has a checkpoint.

        Neither the data nor the place where the run was made is needed, but for earlier rounds of methods that tune
        own models on the client's data. After a round without evaluation a client of FedMN has the gates of the last
        one; before the first, all are open.
        """
        if not isinstance(round, SupportsIndex | None):
            raise SettingsError(f"round: give its number, not {in_words(round)}")
        state = self.run._folder.state_at(round)
        kept = OwnModels(self.run.path).read(state, self.name)
        try:
            return self._made(self.run.setup, state, kept)
        except DataAbsent:
            return self._made(self._setup_with_data(state), state, None)

    def package(self) -> Package:
        """Return the client's own model after the last round, with all that goes out with it."""
        run, state = self.run, self.run._folder.state_at()
        setup, data = run.setup, self.data
        return Package(
            client=self.name,
            model=self.model(),
            inputs=Inputs.of(self.form, self.preparation),
            goal=setup.population.goals[self.info.task],
            facts={"method": setup.method.name, "run": run.settings.name, "round": state.round},
            story=self._story(state),
            test=data["test"] if data is not None else None,
        )

    def _story(self, state: RunState) -> dict[str, Any]:
        """Return what the model's card says of the client."""
        about = self.run.population.get("clients", {}).get(self.name, {})
        mine = [row for row in self.metrics if row["round"] == state.round and row["split"] != "train"]
        return {
            "method": self.run.setup.method.title,
            "attributes": attributes(about, state.groups, self.name),
            "samples": dict(self.info.samples),
            "labels": self.run.population.get("labels", []),
            "counts": about.get("labels", {}),
            "metrics": [{k: v for k, v in row.items() if k not in ("round", "client")} for row in mine],
            "judged": self.judged() if any(row["client"] == self.name for row in self.run.judged) else {},
            "settings": portable(self.run.settings).to_toml(),
        }

    def export(self, to: str | Path, *, force: bool = False) -> Exported:
        """Write the client's own model as a plain one that runs without Intarsia, and return what was written.

        `to` ends in .onnx, .pt2 or .safetensors, or is a folder's name for all of them. Before anything is written, it
        is compared with the original: on the client's test data where that is at hand.
        """
        return export(self.package(), Path(to), force=force)

    def predict(self, samples: Samples, *, identity: str = "") -> Predictions:
        """Predict for new samples: a table, a folder of images, an .npz archive, or an array of raw samples.

        Raw readings go in: scaling, and the rule for missing values, are the model's. `identity` is a column of the
        table that comes along.
        """
        return Predictor.of(self.package()).predict(samples, identity)

    def _made(self, setup: Setup, state: RunState, kept: Own | None) -> nn.Module:
        folder = self.run._folder
        setup = setup.starting_from(state.initial_blocks(folder.store))
        job, content = own_job(setup, self.run.settings.sampling, state, self.name)
        runtime = ClientRuntime(setup, folder.store, "cpu")
        with one_thread(), torch.inference_mode(False), torch.enable_grad():
            if kept is not None:
                return kept.put_into(runtime.joined_model(job.task, job.state, content.__getitem__))
            return runtime.own_model(job.task, job.state, content.__getitem__)

    def _setup_with_data(self, state: RunState) -> Setup:
        try:
            return self.run.experiment.setup
        except (DataError, SettingsError, OSError) as error:
            raise DataError(
                f"the own model of client '{self.name}' after round {state.round} takes its training data (method "
                f"'{self.run.setup.method.name}' tunes it), and only the last round's is kept with the run: take that, "
                f"or give the data (intarsia.open_run(folder, data=...)): {error}"
            ) from error
