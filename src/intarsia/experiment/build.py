"""From typed settings to a setup: population, models and method."""

from __future__ import annotations

import dataclasses
import os
from collections import ChainMap
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch import nn

from intarsia.blocks import CODECS, Cut, Merge
from intarsia.core import (
    SettingsError,
    build_part,
    describe,
    suggest,
    warn,
)
from intarsia.data import POPULATIONS, Population
from intarsia.engines import DebugEngine, Engine, LocalEngine, shared
from intarsia.experiment.clustered import check_cluster, cluster_engine
from intarsia.experiment.given import GIVEN, PARTS, Given
from intarsia.experiment.models import Built, build_models, forms_of, narrowed, origin_of, prepared, read_base
from intarsia.experiment.populations import population_of
from intarsia.experiment.private import check_private, privacy_of, with_noise
from intarsia.experiment.settings import EngineSettings, Settings, check
from intarsia.federation import Clock, Federation, Observer, Planner, Rules, known_before, new_run_id
from intarsia.federation.fleet import check_fleet
from intarsia.judging.metrics import chosen
from intarsia.judging.warnings import before
from intarsia.methods import MERGES, METHODS, SHARINGS, Method
from intarsia.models import (
    ADAPTERS,
    Architecture,
)
from intarsia.runs import RunFolder, RunState
from intarsia.setup import Setup, check_secure_sums
from intarsia.training import OBJECTIVES, Loss, check_class_weights, loss_for
from intarsia.training.fast import chain_for

P = TypeVar("P")
ENGINES = ("debug", "local", "dask")
MANY = 10_000
"""From how many clients on hardly anybody wants to evaluate all."""


@dataclasses.dataclass(frozen=True)
class Experiment:
    """Settings, complete, and the setup that follows from them."""

    settings: Settings
    setup: Setup
    given: Given = dataclasses.field(default_factory=Given, kw_only=True)
    """What was given in Python, for workers that build the setup themselves."""

    @classmethod
    def build(cls, settings: Settings, given: Given | None = None) -> Experiment:
        """Make the population, the models and the method; the settings come back complete."""
        given = given or Given()
        method = _method(settings, given.method)
        population = population_of(settings, given.data)
        models, model_of, table, specs = build_models(settings, population, given.model)
        base = read_base(settings, population, table)
        if base is not None:
            for model in models.values():
                base.fill(model)
        settings = with_noise(settings, len(settings.sampling.residents(list(population.clients))))
        settings, setup = _agreed(settings, population, method, (models, model_of, table, specs))
        setup = dataclasses.replace(setup, base=origin_of(settings, given, base))
        _check_engine(settings.engine)
        _metrics(settings, setup.losses)
        setup.initial_pool()
        complete = _complete(settings, method, given, table)
        recorded = {
            "split_hash": population.split_hash,
            "weights_hash": base.sha256 if base is not None else "",
        }
        return cls(complete.model_copy(update=recorded), setup, given=given)

    @classmethod
    def of_clients(cls, settings: Settings, population: Population, given: Given) -> Experiment:
        """Make the setup of clients that are known without their data; their blocks are those of a run.

        No file that the settings name is looked for: neither data nor weights to start from.
        """
        method = _method(settings, given.method)
        built = build_models(settings, population, given.model)
        return cls(*_agreed(settings, population, method, built))

    @property
    def rules(self) -> Rules:
        """How the loop runs."""
        s = self.settings
        return Rules(
            s.sampling,
            s.min_updates,
            s.evaluation.every,
            s.evaluation.clients,
            s.checkpoints.every,
            s.checkpoints.keep,
            _metrics(s, self.setup.losses),
            s.fleet,
        )

    @property
    def evaluated(self) -> list[str]:
        """The clients whose own models are evaluated."""
        return Planner(self.setup, self.settings.sampling).evaluated(self.settings.evaluation.clients)

    @property
    def told_of(self) -> list[str] | None:
        """The clients that records tell of where they need not tell of all: those that are evaluated (None: some)."""
        return self.evaluated if self.settings.evaluation.clients else None

    def check(self) -> Experiment:
        """Raise if the method cannot work with these clients, warn if it is hardly meant for them.

        Return the experiment with what identifies the fleet's table.
        """
        planner = Planner(self.setup, self.settings.sampling)
        server = planner.server(RunState(new_run_id(), self.setup.initial_pool()))
        self.setup.method.check(server)
        check_private(self.setup, self.settings, server)
        check_secure_sums(self.setup, server)
        fleet, sampling = self.settings.fleet, self.settings.sampling
        recorded = {"fleet_hash": fleet.hash_of_table(self.settings.fleet_hash)}
        check_fleet(self.setup, Clock.of(self.setup, fleet, sampling), sampling)
        for warned in before(known_before(self.setup, server)):
            warn(warned.message)
        self._check_counts(len(server.residents))
        return dataclasses.replace(self, settings=self.settings.model_copy(update=recorded))

    def _check_counts(self, there: int) -> None:
        """Warn of numbers of clients that there are not, and of more than can be meant."""
        everyone = len(self.setup.population)
        if everyone > MANY and not self.settings.evaluation.clients:
            warn(
                f"all {everyone:,} clients are evaluated, and stand in tables and pages: set evaluation.clients to how "
                "many are enough, for example 500"
            )
        asked = {"sampling.clients": self.settings.sampling.clients, "min_updates": self.settings.min_updates}
        for setting, number in asked.items():
            if number > there:
                warn(f"{setting} is {number}, but only {there} clients can train: as many count")

    def beginning_as(self, folder: RunFolder, state: RunState) -> Experiment:
        """Return the experiment with models that start as they did in this run."""
        return dataclasses.replace(self, setup=self.setup.starting_from(state.initial_blocks(folder.store)))

    def with_shared_data(self) -> Experiment:
        """Return the experiment with its data where the workers of its engine read it, if it has any."""
        if self.settings.engine.name != LocalEngine.name:
            return self
        return dataclasses.replace(self, setup=shared(self.setup))

    def engine(self, folder: RunFolder) -> Engine:
        """Start the engine that the settings name."""
        chosen = self.settings.engine
        if chosen.name == "debug":
            return DebugEngine(self.setup, folder.store, chosen.device)
        if chosen.name == "dask":
            return cluster_engine(self.settings, self.setup, self.given, folder)
        return LocalEngine(
            self.setup, folder.store, chosen.device, chosen.workers, before_fork=folder.written
        )

    def play(
        self,
        folder: RunFolder,
        state: RunState | None,
        observer: Observer | None,
        alone: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        """Run the federation from a state (None: from the start) to the end.

        `alone` is what clients are worth that trained alone, to say what they gain.
        """
        with self.engine(folder) as engine:
            rows = [dict(row) for row in alone]
            Federation(self.setup, engine, folder, self.rules, state, observer, rows).run()


def _agreed(
    settings: Settings, population: Population, method: Method, built: Built
) -> tuple[Settings, Setup]:
    """Return what clients and server agree on, and the settings with what follows from it."""
    models, model_of, _, specs = built
    models, model_of = narrowed(models, model_of, population, method)
    models = prepared(settings, models, method, forms_of(population, model_of))
    losses = _losses(settings, population, method)
    settings = _resolved(settings, population, models, model_of, method, losses)
    setup = Setup(
        population=population,
        model_of=model_of,
        method=method,
        training=settings.training,
        losses=losses,
        seed=settings.seed,
        rounds=settings.rounds,
        codec=build_part(CODECS, settings.codec, "codec"),
        privacy=privacy_of(settings),
        secure_sums=settings.secure_sums,
        defence=settings.defence,
        scoring=settings.evaluation.precision,
        specs=specs,
    )
    return settings, setup.with_models(models, Cut.of(settings.cut) if settings.cut else None)


def _method(settings: Settings, given: Method | None) -> Method:
    inside = sorted(set(settings.method) & set(PARTS))
    if inside:
        raise SettingsError(f"method.{inside[0]}: write it as a setting of its own: [{inside[0]}]")
    name = settings.method.get("name")
    if given is not None and name != given.name:
        raise SettingsError(
            f"method: '{given.name}' is given, but the settings are about '{name}': give that one"
        )
    known: Mapping[str, type[Method]] = METHODS if given is None else {given.name: type(given)}
    method = _as_said(known, settings.method, "method", given, PARTS)
    kinds: dict[str, Mapping[str, type]] = {"sharing": SHARINGS, "objective": OBJECTIVES, "merge": MERGES}
    parts = {}
    for name in PARTS:
        usual = getattr(given or method, name)
        # A part of the user's own is known by the method that brings it, not by the registry.
        kind = ChainMap({usual.name: type(usual)}, kinds[name])  # type: ignore[arg-type]
        parts[name] = _as_said(kind, getattr(settings, name), name, usual)
    _check_merge(method, parts["merge"])
    return dataclasses.replace(method, **parts)


def _check_merge(method: Method, chosen: Merge) -> None:
    """Refuse a merge against hostile clients where it would take away what the method is."""
    if chosen.gathers and method.merge.essential:
        raise SettingsError(
            f"merge: method '{method.name}' is its own merge, '{method.merge.name}': '{chosen.name}' cannot stand in "
            "its place; leave `merge` out and bound updates by defence.norm, or choose another method"
        )


def _as_said(
    kinds: Mapping[str, type[P]],
    choice: Mapping[str, Any],
    where: str,
    given: P | None,
    leave_out: Sequence[str] = (),
) -> P:
    """Return the part given, if the settings say just that; else one as they say."""
    if given is not None and choice == describe(given, leave_out=leave_out):
        return given
    return build_part(kinds, choice, where, given)


def _losses(settings: Settings, population: Population, method: Method) -> dict[str, Loss]:
    """Return the loss of each task: the one that the settings name, or the usual one of its problem."""
    losses = {task: loss_for(settings.training.loss, g.problem) for task, g in population.goals.items()}
    _check_class_weights(settings, population, method)
    for task, loss in losses.items():
        if method.needs_loss not in ("", loss.name):
            whose = f" of task '{task}'" if task else ""
            raise SettingsError(
                f"method '{method.name}' is defined for the loss '{method.needs_loss}' alone, but the "
                f"loss{whose} is '{loss.name}': choose another method, or another loss (training.loss)"
            )
    return losses


def _metrics(settings: Settings, losses: Mapping[str, Loss]) -> tuple[str, ...]:
    """Return the metrics that models are judged by."""
    asked = settings.evaluation
    if asked.baseline != "none" and not asked.metrics:
        raise SettingsError(
            "evaluation.baseline: nothing can be compared with it, as evaluation.metrics is empty: leave that out"
        )
    problems = {"classification" if loss.hits else "regression" for loss in losses.values()}
    return chosen(asked.metrics, problems)


def _check_class_weights(settings: Settings, population: Population, method: Method) -> None:
    rule = settings.training.class_weights
    if rule != "none" and not method.weighs_classes:
        raise SettingsError(
            f"training.class_weights: method '{method.name}' has a local step of its own that knows no weights: "
            'set it to "none", or choose another method'
        )
    labels = {task: g.columns for task, g in population.goals.items() if g.problem == "classification"}
    check_class_weights(rule, labels)


def _resolved(
    settings: Settings,
    population: Population,
    models: Mapping[str, nn.Module],
    model_of: Mapping[str, str],
    method: Method,
    losses: Mapping[str, Loss],
) -> Settings:
    """Return the settings with the outcome of `training.batched = "auto"`: whether any model allows it."""
    if settings.training.batched != "auto":
        return settings
    kinds = {(model_of[info.name], info.task) for info in population.kinds}
    some = any(chain_for(models[m], settings.training, method.objective, losses[t]) for m, t in kinds)
    training = dataclasses.replace(settings.training, batched=some)
    return settings.model_copy(update={"training": training})


def _check_engine(engine: EngineSettings) -> None:
    """Say early what cannot work: an unknown engine, a device that is not there."""
    if engine.name not in ENGINES:
        raise SettingsError(f"engine.name: there is no engine '{engine.name}'{suggest(engine.name, ENGINES)}")
    check_cluster(engine)
    if engine.name != "dask":  # what a cluster's workers have, they say themselves
        check_device(engine.device, "engine.device")


def check_device(name: str, where: str) -> None:
    """Say early that a device is none, or not there."""
    if name == "auto":
        return
    try:
        kind = torch.device(name).type
    except RuntimeError as error:
        raise SettingsError(f"{where}: '{name}' is no device: write auto, cpu, cuda or mps") from error
    # Asked through NVML, so that CUDA stays untouched in this process and workers can be forked.
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
    here = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if not here.get(kind, False):
        raise SettingsError(f"{where}: there is no '{name}' on this machine; write auto or cpu")


def _complete(
    settings: Settings, method: Method, given: Given, kinds: Mapping[str, Architecture]
) -> Settings:
    """Return the settings with every default written out."""
    table = settings.model_dump(mode="json")
    table["method"] = describe(method, leave_out=PARTS)
    table |= {name: describe(getattr(method, name)) for name in PARTS}
    if given.data is not None:
        table["population"] = {"name": GIVEN}
    else:
        table["population"] = describe(build_part(POPULATIONS, settings.population, "population"))
    table["model"] = {"name": GIVEN} if given.model is not None else describe(kinds[""])
    if settings.public:
        table["public"] = describe(build_part(POPULATIONS, settings.public, "public"))
    table["codec"] = describe(build_part(CODECS, settings.codec, "codec"))
    table["adapters"] = describe(build_part(ADAPTERS, settings.adapters, "adapters"))
    table["models"] = {key: describe(kind) for key, kind in kinds.items() if key}
    return check(table)
