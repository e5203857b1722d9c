"""Running, going on (with the same data, maybe to another length), opening."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from intarsia.core import JudgedWarning, SettingsError, file_name, in_words, warn
from intarsia.data.recorded import record_of
from intarsia.experiment.arithmetic import check_arithmetic, note_machine
from intarsia.experiment.baseline import alone
from intarsia.experiment.build import Experiment
from intarsia.experiment.earlier import Earlier
from intarsia.experiment.given import Data, Given, Models, asked
from intarsia.experiment.kept import OwnModels, keep_own_models
from intarsia.experiment.opened import Run
from intarsia.experiment.plugged import plug_in_again, with_plugins
from intarsia.experiment.progress import Watching, observers_of, watched
from intarsia.experiment.settings import Settings, Source, load
from intarsia.federation import Observer
from intarsia.methods import Method
from intarsia.runs import SETTINGS, RunFolder, RunState

if TYPE_CHECKING:
    from intarsia.experiment.seeds import SeedRuns
from intarsia.core import DataError
from intarsia.data import EVERYONE, Population
from intarsia.experiment.given import check_against_run
from intarsia.experiment.populations import SplitDiffers
from intarsia.experiment.settings import check, table_of


@overload
def run(
    settings: Source = ...,
    *,
    data: Data | None = ...,
    model: Models | None = ...,
    method: Method | None = ...,
    changes: Iterable[str] = ...,
    out: str | Path | None = ...,
    observer: Watching = ...,
    progress: bool | None = ...,
    track: Iterable[str] = ...,
    seeds: None = None,
) -> Run: ...


@overload
def run(
    settings: Source = ...,
    *,
    data: Data | None = ...,
    model: Models | None = ...,
    method: Method | None = ...,
    changes: Iterable[str] = ...,
    out: str | Path | None = ...,
    observer: Watching = ...,
    progress: bool | None = ...,
    track: Iterable[str] = ...,
    seeds: int | Sequence[int],
) -> SeedRuns: ...


def run(
    settings: Source = "quickstart",
    *,
    data: Data | None = None,
    model: Models | None = None,
    method: Method | None = None,
    changes: Iterable[str] = (),
    out: str | Path | None = None,
    observer: Watching = None,
    progress: bool | None = None,
    track: Iterable[str] = (),
    seeds: int | Sequence[int] | None = None,
) -> Run | SeedRuns:
    """Run a federation from settings (a recipe's name, a TOML file, a dict) and return the run.

    `data` is a dict of clients (see `intarsia.from_dict`). `model` is any `nn.Module`; or a dict of them by
    the client's attribute `model` or `device`; or a function of the client, called once for all clients that
    are alike in shape and attributes. `method` is a `Method` of one's own: it stands in place of `method`, `sharing`,
    `objective` and `merge` in the settings. `changes` are settings as `training.lr=0.1`, put above all that; `out` is
    the run folder (by default a new one under `runs/`). `observer` is told of everything: one, or a list of them.
    `progress` shows rounds and the time left (by default in a terminal or a notebook, unless an observer is given).
    `track` names trackers that get the run's figures: "tensorboard", "mlflow", "wandb".

    `seeds` is a number of seeds, counted from the settings' one, or a list of them: there is a run for each, in a
    folder of its own, and the same call with the same `out` goes on where it was stopped.
    """
    given = Given(data, model, method)
    told = observers_of(observer, track)
    if seeds is not None:
        from intarsia.experiment.seeds import run_seeds

        return run_seeds(asked(settings, changes, given), given, seeds, out, told, progress)
    return _told(start(asked(settings, changes, given), given, out, told, progress))


def start(
    settings: Settings,
    given: Given,
    out: str | Path | None = None,
    observer: Observer | None = None,
    progress: bool | None = False,
) -> Run:
    """Run a federation from settings that are about what is given, and return the run."""
    experiment = Experiment.build(with_plugins(settings), given).check().with_shared_data()
    check_arithmetic(experiment.settings)
    earlier = Earlier.of(experiment)
    path = path_of(out, "out") if out is not None else fresh_folder(Path("runs"), experiment.settings.name)
    folder = RunFolder.create(path, experiment.settings.to_toml())
    note_machine(folder, experiment.settings)
    population = experiment.setup.population
    about = record_of(population, experiment.told_of)
    folder.write_population({**about, "splits": population.split_hashes})
    return _play(experiment, given, folder, earlier.start(folder) if earlier else None, observer, progress)


def resume(
    path: str | Path,
    *,
    data: Data | None = None,
    model: Models | None = None,
    method: Method | None = None,
    rounds: int | None = None,
    engine: Mapping[str, Any] | None = None,
    observer: Watching = None,
    progress: bool | None = None,
    track: Iterable[str] = (),
) -> Run:
    """Go on with a run that was stopped, and end with exactly what it would have been.

    With `rounds` it goes on to another end, past the one that it had too: as a run of so many rounds would have been;
    where a setting depends on their number, a warning names it.

    What was given in Python to `run` must be given again (a model's initial weights and a method's settings come
    from the run). The engine may be another one (`{"name": "debug"}`, `{"workers": 1}`): results do not depend on it.
    Trackers (`track`) go on with what they noted of the run.
    """
    told = observers_of(observer, track)
    folder = RunFolder.reopen(path_of(path, "path"))
    try:
        settings = of_length(_settings_of(folder, engine), rounds, folder)
        given = Given(data, model, method)
        experiment = build_again(settings, given, folder).check().with_shared_data()
        check_arithmetic(settings)
        note_machine(folder, settings)
        if rounds is not None:
            folder.set_rounds(rounds)
            OwnModels(folder.path).forget()
        state = folder.restore()
        if state is not None:
            tell_what_length_changes(experiment, folder, state)
            experiment = experiment.beginning_as(folder, state)
        elif (earlier := Earlier.of(experiment)) is not None:
            state = earlier.start(folder)
    except BaseException:
        folder.close()
        raise
    return _told(_play(experiment, given, folder, state, told, progress))


def _settings_of(folder: RunFolder, engine: Any) -> Settings:
    """Return the settings that a run goes on with, maybe by another engine; what they name of the user's is there."""
    if not isinstance(engine, Mapping | None):
        raise SettingsError(f'engine: give a dict, for example {{"name": "debug"}}, not {in_words(engine)}')
    changes = [f"engine.{key}={value}" for key, value in (engine or {}).items()]
    settings = load(folder.path / SETTINGS)
    settings = settings.model_copy(update={"engine": load(settings, changes).engine})
    plug_in_again(settings, folder.path)
    return settings


def _told(done: Run) -> Run:
    """Warn of what looks wrong with a run's result."""
    for warned in done.summary.get("judged", {}).get("warnings", ()):
        warn(warned["message"], JudgedWarning)
    return done


def open_run(
    path: str | Path,
    *,
    data: Data | None = None,
    model: Models | None = None,
    method: Method | None = None,
) -> Run:
    """Open a run folder to read, wherever it lies now; models and data that were given in Python are not in it.

    The model and a method of one's own must be given again for the clients' models; the data need not.
    """
    folder = RunFolder(path_of(path, "path"))
    _ = folder.settings_text
    given = Given(data, model, method)
    if data is not None:
        settings = load(folder.path / SETTINGS)
        plug_in_again(settings, folder.path)
        return Run(folder, build_again(settings, given, folder), given)
    opened = Run(folder, given=given)
    if given != Given():
        _ = opened.setup
    return opened


def _play(
    experiment: Experiment,
    given: Given,
    folder: RunFolder,
    state: RunState | None,
    observer: Observer | None,
    progress: bool | None,
) -> Run:
    try:
        with watched(observer, progress, folder.path) as told:
            lone = alone(experiment, given, folder.path, told or Observer())
            experiment.play(folder, state, told, lone)
        keep_own_models(experiment.setup, folder, experiment.settings.sampling, experiment.evaluated)
    finally:
        folder.close()
    return Run(folder, experiment)


def path_of(path: Any, what: str) -> Path:
    """Return a path that was given as text or as a path."""
    if not isinstance(path, str | os.PathLike):
        raise SettingsError(f"{what}: give a path, not {in_words(path)}")
    return Path(path)


def fresh_folder(parent: Path, name: str) -> Path:
    """Return the first folder `name-1`, `name-2`, ... in a folder that is not there yet."""
    name, number = file_name(name).lstrip(".-") or "run", 1
    while (parent / f"{name}-{number}").exists():
        number += 1
    return parent / f"{name}-{number}"


def of_length(settings: Settings, rounds: Any, folder: RunFolder) -> Settings:
    """Return settings with this number of rounds (None: as they are); fewer than are played are refused."""
    if rounds is None:
        return settings
    if isinstance(rounds, bool) or not isinstance(rounds, int):
        raise SettingsError(f"rounds: give a number, for example 300, not {in_words(rounds)}")
    played = max(folder.checkpoints, default=0)
    if rounds < played:
        raise SettingsError(
            f"rounds: {folder.path} has played {played} rounds already, {rounds} are fewer: give "
            f"{played} or more, or start a new run with --set rounds={rounds}"
        )
    return check({**table_of(settings), "rounds": rounds})


def tell_what_length_changes(experiment: Experiment, folder: RunFolder, state: RunState) -> None:
    """Warn where rounds that are played would have gone otherwise, had the run had its length from the start."""
    before, now = folder.written_for, experiment.settings.rounds
    if not before or before == now or not state.round:
        return
    setup = experiment.setup
    for setting in (
        *setup.training.stretched(state.round, before, now),
        *setup.method.stretched(state.round, before, now),
    ):
        warn(
            f"{setting} depends on the number of rounds: the {state.round} that are played went as in a run of "
            f"{before}, the others go as in one of {now}; start a new run with rounds={now} if that matters"
        )
    if state.round in (before, now):
        warn(
            f"round {state.round} was played as in a run of {before} rounds, and is evaluated so: checkpoints.keep = "
            f"{experiment.settings.checkpoints.keep} has left no checkpoint before it to play it anew from"
        )


SHOWN = 3
"""How many clients a text names."""


def build_again(settings: Settings, given: Given, folder: RunFolder) -> Experiment:
    """Build the experiment of a run folder; of data that is not the run's, say whose differs."""
    check_against_run(given, settings)
    try:
        return Experiment.build(settings, given)
    except SplitDiffers as error:
        found = _differences(folder.population(), error.population)
        if not found:
            raise
        more = [f"and {len(found) - SHOWN} more clients"] if len(found) > SHOWN else []
        raise DataError("\n  ".join([f"{error}. What differs:", *found[:SHOWN], *more])) from None


def _differences(recorded: Mapping[str, Any], population: Population) -> list[str]:
    """Return a sentence for every client whose share is not what was recorded; none where some are recorded alone."""
    if EVERYONE in recorded:
        return []
    before, now = recorded.get("clients", {}), population.clients
    hashes, known = population.split_hashes, recorded.get("splits", {})
    gone = [f"client '{name}' is not there any more" for name in before if name not in now]
    come = [f"client '{name}' was not there" for name in now if name not in before]
    other = [
        f"client '{name}' has {_change(before[name], dict(client.info.samples))}"
        for name, client in now.items()
        if name in before and (known.get(name, hashes.get(name)) != hashes.get(name))
    ]
    return [*gone, *come, *other]


def _change(before: Mapping[str, Any], samples: Mapping[str, int]) -> str:
    was = dict(before.get("samples", {}))
    counts = [f"{now} {split} samples, had {was.get(split, 0)}" for split, now in samples.items()]
    told = [text for text, split in zip(counts, samples, strict=True) if samples[split] != was.get(split, 0)]
    return ", ".join(told) or "as many samples as before, but other rows, inputs, labels or attributes"
