"""From typed settings to a federation, and from a run folder to its clients' models."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, SupportsIndex, TypeVar

import torch
from torch import nn

from intarsia.blocks import CODECS, MERGES, Block, Cut, Pool, coded_bytes
from intarsia.blocks.wire import ClientPlan
from intarsia.clients import KEPT, ClientRuntime
from intarsia.core import (
    DataError,
    SettingsError,
    build_part,
    chance,
    describe,
    file_name,
    in_words,
    one_thread,
    suggest,
    warn,
)
from intarsia.data import ATTRIBUTES, POPULATIONS, ClientInfo, Population, from_dict, places, who_holds_what
from intarsia.data.public import check_apart, digests, public_of
from intarsia.engines import DebugEngine, Engine, LocalEngine
from intarsia.experiment.settings import EngineSettings, Settings, Source, check, listed, load, table_of
from intarsia.federation import Federation, Observer, Planner, Rules, new_run_id
from intarsia.methods import EVALUATE, METHODS, SHARINGS, Exchange, Method
from intarsia.models import (
    ADAPTERS,
    MODELS,
    NAMED,
    Adapters,
    Architecture,
    Base,
    Shape,
    Spec,
    narrow,
    parts_of,
    relu_first,
)
from intarsia.runs import SUMMARY, ClientRecord, Records, RunFolder, RunState
from intarsia.setup import Setup
from intarsia.training import OBJECTIVES, Loss, loss_for, takes

OWN = "own"
"""The name, in settings, of a population or model that was given in Python."""

P = TypeVar("P")
ENGINES = ("debug", "local")
PARTS = ("sharing", "objective", "merge")

Data = Population | Mapping[str, Mapping[str, Any]]
Models = nn.Module | Mapping[str, nn.Module] | Callable[[ClientInfo], nn.Module]


@dataclasses.dataclass(frozen=True)
class Given:
    """What a user gives in Python instead of naming it in the settings."""

    data: Data | None = None
    model: Models | None = None
    method: Method | None = None

    def __post_init__(self) -> None:
        if self.model is not None:
            _check_given_model(self.model)
        if self.method is not None:
            _check_given_method(self.method)

    def check_changes(self, names: Iterable[str]) -> None:
        """Refuse changes of settings that have no say, since something is given in their place."""
        for name in names:
            first = name.partition(".")[0].strip()
            if self.data is not None and first == "population":
                raise SettingsError(f"{name}: the data is given in Python, so that this would change nothing")
            if self.model is not None and first in ("model", "models"):
                raise SettingsError(
                    f"{name}: the model is given in Python, so that this would change nothing"
                )


def _check_given_model(model: Any) -> None:
    if isinstance(model, nn.Module | Mapping):
        return
    if isinstance(model, type) or not callable(model):
        raise SettingsError(
            f"model: give a module (Network(), not Network), a dict of modules, or a function of the client, not "
            f'{in_words(model)}; one that comes with Intarsia is a setting: changes=["model=mlp"]'
        )
    try:
        inspect.signature(model).bind(None)
    except ValueError:
        return  # its arguments cannot be seen
    except TypeError:
        raise SettingsError(
            "model: the function must take one argument, the client: lambda client: Network()"
        ) from None


def _check_given_method(method: Any) -> None:
    if not isinstance(method, Method):
        raise SettingsError(
            f"method: give an object of a class of methods, as Own(), not {in_words(method)}; one that comes with "
            'Intarsia is a setting: changes=["method=fedper"]'
        )
    for word in ("name", "title"):
        if not isinstance(getattr(method, word, None), str):
            raise SettingsError(f'method: class {type(method).__name__} needs a {word}: {word} = "..." in it')


def asked(source: Source, changes: Iterable[str], given: Given) -> Settings:
    """Read settings; a method that is given stands in place of the one they name, and changes change it."""
    changes = listed(changes)
    if given.method is None:
        settings = load(source, changes)
    else:
        table = table_of(source)
        settings = load({**table, **_described(given.method)}, changes)
        _tell_left_aside(table, settings)
    given.check_changes(change.partition("=")[0] for change in changes)
    return settings


def _described(method: Method) -> dict[str, Any]:
    """Return a method and its parts as settings."""
    parts = {name: describe(getattr(method, name)) for name in PARTS}
    return {"method": describe(method, leave_out=PARTS), **parts}


def _tell_left_aside(table: Mapping[str, Any], settings: Settings) -> None:
    """Warn of settings of a method's parts that the method given has otherwise."""
    for part in PARTS:
        said = table.get(part)
        for key, value in (said if isinstance(said, Mapping) else {"name": said} if said else {}).items():
            if value != getattr(settings, part).get(key):
                place = part if key == "name" else f"{part}.{key}"
                warn(
                    f"{place}: {value!r} of the settings is left aside: the method given in Python has a {part} of "
                    f"its own; to change that, write changes=['{place}={value}']"
                )


@dataclasses.dataclass(frozen=True)
class Experiment:
    """Settings, complete, and the setup that follows from them."""

    settings: Settings
    setup: Setup

    @classmethod
    def build(cls, settings: Settings, given: Given | None = None) -> Experiment:
        """Make the population, the models and the method; the settings come back complete."""
        given = given or Given()
        method = _method(settings, given.method)
        population = population_of(settings, given.data)
        models, model_of, table, specs = _models(settings, population, given.model)
        base = _base(settings, population, table)
        if base is not None:
            for model in models.values():
                base.fill(model)
        models, model_of = _narrowed(models, model_of, population, method)
        models = _prepared(settings, models, method, _forms(population, model_of))
        losses = _losses(settings, population, method)
        settings = _resolved(settings, population, models, model_of, method, losses)
        setup = Setup(
            population=population,
            models=models,
            model_of=model_of,
            method=method,
            training=settings.training,
            losses=losses,
            seed=settings.seed,
            rounds=settings.rounds,
            cut=Cut.of(settings.cut) if settings.cut else None,
            codec=build_part(CODECS, settings.codec, "codec"),
            base=_origin(settings, given, base),
            specs=specs,
        )
        _check_engine(settings.engine)
        settings.sampling.residents(list(model_of))
        setup.initial_pool()
        complete = _complete(settings, method, given, table)
        recorded = {
            "split_hash": population.split_hash,
            "weights_hash": base.sha256 if base is not None else "",
        }
        return cls(complete.model_copy(update=recorded), setup)

    @property
    def rules(self) -> Rules:
        """How the loop runs."""
        s = self.settings
        return Rules(s.sampling, s.min_updates, s.evaluation.every, s.checkpoints.every, s.checkpoints.keep)

    def check(self) -> Experiment:
        """Raise if the method cannot work with these clients, warn if it is hardly meant for them; else return this."""
        planner = Planner(self.setup, self.settings.sampling)
        server = planner.server(RunState(new_run_id(), self.setup.initial_pool()))
        self.setup.method.check(server)
        if doubt := self.setup.method.doubt(server):
            warn(doubt)
        self._check_counts(len(server.residents))
        return self

    def _check_counts(self, there: int) -> None:
        """Warn of numbers of clients that there are not."""
        asked = {"sampling.clients": self.settings.sampling.clients, "min_updates": self.settings.min_updates}
        for setting, number in asked.items():
            if number > there:
                warn(f"{setting} is {number}, but only {there} clients can train: as many count")

    def engine(self, folder: RunFolder) -> Engine:
        """Start the engine that the settings name."""
        chosen = self.settings.engine
        if chosen.name == "debug":
            return DebugEngine(self.setup, folder.store, chosen.device)
        return LocalEngine(self.setup, folder.store, chosen.device, chosen.workers)

    def play(self, folder: RunFolder, state: RunState | None, observer: Observer | None) -> None:
        """Run the federation from a state (None: from the start) to the end."""
        with self.engine(folder) as engine:
            Federation(self.setup, engine, folder, self.rules, state, observer).run()


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

    def model(self, round: int | None = None) -> nn.Module:
        """Return the client's own model after the last round, or another that has a checkpoint.

        After a round without evaluation a client of FedMN has the gates of the last one; before the first, all are
        open.
        """
        if not isinstance(round, SupportsIndex | None):
            raise SettingsError(f"round: give its number, not {in_words(round)}")
        setup, folder = self.run.experiment.setup, self.run._folder
        sampling = self.run.experiment.settings.sampling
        state = folder.state_at(round)
        setup.adopt(folder.initial_blocks(state))
        planner = Planner(setup, sampling)
        exchange = setup.method.own(planner.server(state))
        plan = planner.plan(exchange, {self.name: 1}, state.groups, EVALUATE)
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
    experiment = Experiment.build(settings, given).check()
    earlier = Earlier.of(experiment)
    path = path_of(out, "out") if out is not None else fresh_folder(Path("runs"), experiment.settings.name)
    folder = RunFolder.create(path, experiment.settings.to_toml())
    folder.write_population(who_holds_what(experiment.setup.population))
    return _play(experiment, folder, earlier.start(folder) if earlier else None, observer)


def resume(
    path: str | Path,
    *,
    data: Data | None = None,
    model: Models | None = None,
    method: Method | None = None,
    engine: Mapping[str, Any] | None = None,
    observer: Observer | None = None,
) -> Run:
    """Go on with a run that was stopped, and end with exactly what it would have been.

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
        experiment = Experiment.build(settings, Given(data, model, method)).check()
        state = folder.restore()
        if state is not None:
            experiment.setup.adopt(folder.initial_blocks(state))
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
    experiment = None if given == Given() else Experiment.build(load(folder.path / "settings.toml"), given)
    return Run(folder, experiment)


def preview(
    settings: Source,
    *,
    data: Data | None = None,
    model: Models | None = None,
    method: Method | None = None,
    changes: Iterable[str] = (),
) -> dict[str, Any]:
    """Return what the first round would do, without doing it: clients, blocks, addresses, bytes.

    Of a method that asks its clients before it decides what each of them trains, all that it could send.
    """
    given = Given(data, model, method)
    experiment = Experiment.build(asked(settings, changes, given), given).check()
    setup, rules = experiment.setup, experiment.rules
    planner = Planner(setup, rules.sampling)
    state = RunState("0" * 16, setup.initial_pool(), 1)
    first = next(setup.method.round(planner.server(state)))
    exchange = first if first.step == Exchange().step else Exchange()
    chosen = rules.sampling.choose(list(planner.infos), setup.seed, 1)
    plan = planner.plan(exchange, dict.fromkeys(planner.infos, 1), {})
    jobs, _ = planner.jobs(state, plan, exchange)
    clients = [_client_preview(setup, job.task.plan, planner.infos[job.task.client]) for job in jobs]
    taking_part = [c for c in clients if c["client"] in set(chosen)]
    return {
        "name": experiment.settings.name,
        "method": setup.method.name,
        "rounds": setup.rounds,
        "base": dict(setup.base),
        "clients": clients,
        "clients_a_round": len(chosen),
        "addresses": {
            str(a): {"parameters": state.pool.get(a).parameters, "bytes": state.pool.get(a).nbytes}
            for a in state.pool
        },
        "cut_points": {key: _cut_points(t.model) for key, t in setup.templates.items()},
        "bytes_a_round": {
            "down": sum(c["bytes"]["down"] for c in taking_part),
            "up": sum(c["bytes"]["up"] for c in taking_part),
        },
    }


def _cut_points(model: nn.Module) -> list[dict[str, Any]]:
    """Return, for every part that a later block may begin with, the bytes before it and from it on."""
    parts = parts_of(model)
    blocks = Cut(parts).split(model) if parts else {}
    sizes = [block.nbytes for block in blocks.values()]
    return [
        {"part": name, "before": sum(sizes[:i]), "from": sum(sizes[i:])}
        for i, name in enumerate(blocks)
        if i > 0
    ]


def _client_preview(setup: Setup, plan: ClientPlan, info: ClientInfo) -> dict[str, Any]:
    initial = setup.template(info.name).initial
    returned = {a.block for a in plan.returned}
    blocks: list[dict[str, Any]] = [
        {
            "block": block,
            "address": str(address),
            "parameters": initial[block].parameters,
            "bytes": initial[block].nbytes,
            "down": 0 if address.private else initial[block].nbytes,
            "up": coded_bytes(setup.codec, initial[block]) if block in returned else 0,
        }
        for block, address in plan.hold.items()
    ]
    return {
        "client": info.name,
        "device": info.device,
        "cohort": info.cohort,
        "model": info.model,
        "task": info.task,
        "samples": dict(info.samples),
        "blocks": blocks,
        "bytes": {way: sum(b[way] for b in blocks) for way in ("down", "up")},
    }


def _play(
    experiment: Experiment, folder: RunFolder, state: RunState | None, observer: Observer | None
) -> Run:
    try:
        experiment.play(folder, state, observer)
    finally:
        folder.close()
    return Run(folder, experiment)


@dataclasses.dataclass(frozen=True)
class Earlier:
    """What goes on from an earlier run: blocks with the same address and layout, shared or a client's own.

    The others start afresh. So a new generation of devices can join: its own input side is new, the modules
    of its cohort are there already. A client that is now in another cohort, or has another device, finds that
    cohort's or device's module; what it keeps to itself stays, as long as it still fits. Cohorts that were
    found in the earlier run are found anew.
    """

    pool: Pool
    private: Mapping[str, Mapping[str, Block]]
    """Clients' own blocks, by client and block."""

    @classmethod
    def of(cls, experiment: Experiment) -> Earlier | None:
        """Read the run that `start_from` names, if any."""
        source = experiment.settings.start_from
        if not source:
            return None
        folder = RunFolder(Path(source))
        _ = folder.settings_text
        same_method = load(folder.path / "settings.toml").method["name"] == experiment.setup.method.name
        before, setup = folder.state_at(), experiment.setup
        pool, taken = setup.initial_pool(), 0
        for address in pool:
            if address in before.pool and before.pool.get(address).layout == pool.get(address).layout:
                pool.put(address, before.pool.get(address))
                taken += 1
        private = {
            info.name: cls._own(setup, info, folder, before, same_method)
            for info in setup.population.infos
            if info.name in before.clients
        }
        if not taken and not any(private.values()):
            there = ", ".join(str(a) for a in before.pool) or "no shared block"
            raise SettingsError(f"start_from: {source} has no block that fits; it has: {there}")
        return cls(pool, private)

    @staticmethod
    def _own(
        setup: Setup, info: ClientInfo, folder: RunFolder, before: RunState, same_method: bool
    ) -> dict[str, Block]:
        """Return what a client kept, keeps still, and that fits: its own blocks, and what its method keeps for it."""
        versions = before.clients[info.name].state.get("private", {})
        template = setup.template(info.name)
        wanted = [b for b, a in setup.addresses(info).items() if a.private and b in versions]
        blocks = {name: folder.store.get(versions[name]) for name in wanted}
        fitting = {n: block for n, block in blocks.items() if block.layout == template.initial[n].layout}
        kept = [name for name in versions if same_method and name.endswith(KEPT)]
        shapes = {name: tensor.shape for name, tensor in template.model.state_dict().items()}
        for name in kept:
            block = folder.store.get(versions[name])
            if all(t.shape == shapes.get(n, t.shape) for n, t in block.tensors.items()):
                fitting[name] = block
        return fitting

    def start(self, folder: RunFolder) -> RunState:
        """Return a state before round 1; what clients keep to themselves is copied to this folder."""
        records = {
            client: ClientRecord(state={"private": {n: folder.store.put(b) for n, b in blocks.items()}})
            for client, blocks in self.private.items()
            if blocks
        }
        return RunState(new_run_id(), self.pool, clients=Records(records))


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
    name, number = file_name(name), 1
    while (parent / f"{name}-{number}").exists():
        number += 1
    return parent / f"{name}-{number}"


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
        kind = {**kinds[name], usual.name: type(usual)}
        parts[name] = _as_said(kind, getattr(settings, name), name, usual)
    return dataclasses.replace(method, **parts)


def _as_said(
    kinds: Mapping[str, type[P]],
    choice: Mapping[str, Any],
    where: str,
    given: P | None,
    leave_out: Sequence[str] = (),
) -> P:
    """Return the part given, if the settings say just that; else one as they say."""
    if given is not None and choice == describe(given, leave_out):
        return given
    return build_part(kinds, choice, where, given)


def population_of(settings: Settings, given: Data | None = None) -> Population:
    """Return the population that settings name or that is given, and public data; a recorded split must come again."""
    population = _with_public(settings, _population(settings, given))
    if settings.split_hash not in ("", population.split_hash):
        raise DataError(
            f"the split is {population.split_hash}, the settings were written for {settings.split_hash}: the "
            "data is not the same; put it right, or set split_hash to nothing to take it as it is"
        )
    return population


def _with_public(settings: Settings, population: Population) -> Population:
    """Return the population with the public data that the settings name; none of it may be a client's."""
    if settings.public:
        source = build_part(POPULATIONS, settings.public, "public")
        public = public_of(source.load(settings.seed, places(settings.data_folder)))
        population = dataclasses.replace(population, public=public)
    if population.public is not None:
        check_apart(digests(population.public), population)
    return population


def _population(settings: Settings, given: Data | None) -> Population:
    if isinstance(given, Population):
        return given
    if given is not None:
        return from_dict(given, "regression" if settings.training.loss == "mse" else "classification")
    if settings.population.get("name") == OWN:
        raise SettingsError(
            "population: this run's data was given in Python; give it again: "
            "intarsia.run(settings, data=...), intarsia.resume(folder, data=...)"
        )
    return build_part(POPULATIONS, settings.population, "population").load(
        settings.seed, places(settings.data_folder)
    )


def _losses(settings: Settings, population: Population, method: Method) -> dict[str, Loss]:
    """Return the loss of each task: the one that the settings name, or the usual one of its problem."""
    losses = {task: loss_for(settings.training.loss, g.problem) for task, g in population.goals.items()}
    for task, loss in losses.items():
        if method.needs_loss not in ("", loss.name):
            whose = f" of task '{task}'" if task else ""
            raise SettingsError(
                f"method '{method.name}' is defined for the loss '{method.needs_loss}' alone, but the "
                f"loss{whose} is '{loss.name}': choose another method, or another loss (training.loss)"
            )
    return losses


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
    kinds = {(model_of[info.name], info.task) for info in population.infos}
    some = any(takes(models[m], settings.training, method.objective, losses[t]) for m, t in kinds)
    training = dataclasses.replace(settings.training, batched=some)
    return settings.model_copy(update={"training": training})


def _check_engine(engine: EngineSettings) -> None:
    """Say early what cannot work: an unknown engine, a device that is not there."""
    if engine.name not in ENGINES:
        raise SettingsError(f"engine.name: there is no engine '{engine.name}'{suggest(engine.name, ENGINES)}")
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


Built = tuple[dict[str, nn.Module], dict[str, str], dict[str, Architecture], dict[str, Spec]]


def _models(settings: Settings, population: Population, given: Models | None) -> Built:
    """Return models by key, the key of each client, the named architectures, and the models' specs."""
    if given is not None:
        return (*_given_models(settings, population, given), {}, {})
    if settings.model.get("name") == OWN:
        raise SettingsError(
            "model: this run's model was given in Python; give it again: intarsia.run(settings, model=...)"
        )
    unused = settings.models.keys() - {key for i in population.infos for key in (i.model, i.device)}
    if unused:
        there = sorted({i.device for i in population.infos})
        raise SettingsError(
            f"models.{min(unused)}: no client has this model or device; devices: {', '.join(there)}"
        )
    kinds = {"": build_part(MODELS, settings.model, "model")}
    kinds |= {i.model: NAMED[i.model] for i in population.infos if i.model in NAMED}
    kinds |= {key: build_part(MODELS, choice, f"models.{key}") for key, choice in settings.models.items()}
    specs: dict[str, Spec] = {}
    model_of, goals = {}, population.goals
    for info in population.infos:
        which = next((k for k in (info.model, info.device) if k and k in kinds), "")
        key = "/".join([which, "x".join(map(str, info.shape)), *([info.task] if info.task else [])])
        model_of[info.name] = key
        specs.setdefault(key, Spec(kinds[which], info.shape, goals[info.task].outputs))
    models = {key: spec.build(settings.seed) for key, spec in specs.items()}
    return models, model_of, kinds, specs


def _base(settings: Settings, population: Population, kinds: Mapping[str, Architecture]) -> Base | None:
    """Return the weights that the settings name; such as do not fit the models or the data are refused."""
    if not settings.weights:
        return None
    base = Base.read(Path(settings.weights))
    if settings.weights_hash not in ("", base.sha256):
        raise SettingsError(
            f"weights: {base.path} is another file (sha256 {base.sha256}) than the settings were written for "
            f"({settings.weights_hash}): put it right, or set weights_hash to nothing to take it as it is"
        )
    scalings = [examples.scaling for c in population.clients.values() for examples in c.data.values()]
    base.check({kind.name for kind in kinds.values()}, {s.inputs for s in scalings if s is not None})
    return base


def _origin(settings: Settings, given: Given, base: Base | None) -> dict[str, Any]:
    """Return where the first weights come from, if that matters: with adapters, or from a file."""
    if base is not None:
        return base.to_json()
    if settings.adapters.get("name") == Adapters.name:
        return {}
    if settings.start_from:
        earlier = RunFolder(Path(settings.start_from))
        known = earlier.summary().get("base", {}) if (earlier.path / SUMMARY).exists() else {}
        return {"weights": "earlier run", "run": settings.start_from, "base": known}
    return {"weights": "random" if given.model is None else "given"}


def _narrowed(
    models: Mapping[str, nn.Module], model_of: Mapping[str, str], population: Population, method: Method
) -> tuple[dict[str, nn.Module], dict[str, str]]:
    """Return the models, narrower ones for clients that the method gives less than all of one, and who has which."""
    made: dict[str, nn.Module] = {}
    keys = {}
    for info in population.infos:
        whole, width = model_of[info.name], method.width(info)
        keys[info.name] = key = whole if width == 1 else f"{whole}/width-{width:g}"
        if key not in made:
            made[key] = models[whole] if width == 1 else narrow(models[whole], width)
    return made, keys


def _forms(population: Population, model_of: Mapping[str, str]) -> dict[str, tuple[Shape, int]]:
    """Return the shape of every model's inputs and the number of its outputs."""
    goals = population.goals
    return {model_of[info.name]: (info.shape, goals[info.task].outputs) for info in population.infos}


def _prepared(
    settings: Settings,
    models: Mapping[str, nn.Module],
    method: Method,
    forms: Mapping[str, tuple[Shape, int]],
) -> dict[str, nn.Module]:
    """Return the models with the adapters that the settings ask for, as the method takes them."""
    adapters = build_part(ADAPTERS, settings.adapters, "adapters")
    prepared = {}
    for key, model in models.items():
        with chance.torch_seeded(settings.seed, "adapters", key):
            adapted = adapters.add(relu_first(model) if settings.training.plain else model)
        with chance.torch_seeded(settings.seed, method.name, key):
            prepared[key] = method.equip(adapted, *forms[key])
    return prepared


def _given_models(
    settings: Settings, population: Population, given: Models
) -> tuple[dict[str, nn.Module], dict[str, str]]:
    models: dict[str, nn.Module] = {}
    model_of = {}
    for info in population.infos:
        key, make = _given_model(given, info)
        model_of[info.name] = key
        if key not in models:
            with chance.torch_seeded(settings.seed, "initial weights", key):
                models[key] = _copied(_made(make, info))
    return models, model_of


def _made(make: Callable[[], nn.Module], info: ClientInfo) -> nn.Module:
    """Return the model given for a client, if it is one."""
    model = make()
    if not isinstance(model, nn.Module):
        raise SettingsError(
            f"model: give a module for client '{info.name}' (Network(), not Network), not {in_words(model)}"
        )
    return model


def _copied(model: nn.Module) -> nn.Module:
    """Return a copy of a given model, as clients' models are; such as would not be the same are refused."""
    hooked = [name for name, weight in model.named_parameters() if weight._backward_hooks]
    if hooked:
        raise DataError(
            f"the model's '{hooked[0]}' has a hook, which copies would lose: register it on the module"
        )
    made = copy.deepcopy(model)
    for name, weight in made.named_parameters():
        if isinstance(weight, nn.parameter.UninitializedParameter):
            raise DataError(
                f"the model's '{name}' has no shape yet (a lazy layer): let one batch go through it first"
            )
        if not weight.is_leaf:
            raise DataError(
                f"copies of the model cannot be trained ('{name}' is computed in them, as in scripted models): give "
                "the plain nn.Module"
            )
    return made


def _given_model(given: Models, info: ClientInfo) -> tuple[str, Callable[[], nn.Module]]:
    if isinstance(given, nn.Module):
        return "model", lambda: given
    if isinstance(given, Mapping):
        key = next((k for k in (info.model, info.device) if k in given), None)
        if key is None:
            raise DataError(
                f"no model was given for client '{info.name}' (its model: '{info.model}', its device: "
                f"'{info.device}'); given: {', '.join(given)}"
            )
        return key, lambda: given[key]
    alike = [*(info.attribute(name) for name in ATTRIBUTES), "x".join(map(str, info.shape))]
    return "/".join(alike), lambda: given(info)


def _complete(
    settings: Settings, method: Method, given: Given, kinds: Mapping[str, Architecture]
) -> Settings:
    """Return the settings with every default written out."""
    table = settings.model_dump(mode="json")
    table["method"] = describe(method, leave_out=PARTS)
    table |= {name: describe(getattr(method, name)) for name in PARTS}
    if given.data is not None:
        table["population"] = {"name": OWN}
    else:
        table["population"] = describe(build_part(POPULATIONS, settings.population, "population"))
    table["model"] = {"name": OWN} if given.model is not None else describe(kinds[""])
    if settings.public:
        table["public"] = describe(build_part(POPULATIONS, settings.public, "public"))
    table["codec"] = describe(build_part(CODECS, settings.codec, "codec"))
    table["adapters"] = describe(build_part(ADAPTERS, settings.adapters, "adapters"))
    table["models"] = {key: describe(kind) for key, kind in kinds.items() if key}
    return check(table)
