"""Typed settings: from a recipe, a TOML file or a dict; an unknown key is an error with a suggestion."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterable, Mapping
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal

import tomli_w
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    ValidationError,
    model_serializer,
)

from intarsia.core import SettingsError, explain, in_words, part, read_toml, suggest
from intarsia.experiment.another_method import refitted
from intarsia.federation import Fleet, Sampling
from intarsia.training import Precision, Training
from intarsia.trust import Defence, Privacy, SecureSums


def _as_table(value: Any) -> Any:
    return {"name": value} if isinstance(value, str) else value


Choice = Annotated[dict[str, Any], BeforeValidator(_as_table)]
"""A named part and its own settings: `"fedprox"`, or a table with `name` and more."""

Count = Annotated[int, Field(ge=1)]

RECORDED = {
    "split_hash": ("population", "public", "seed"),
    "weights_hash": ("weights",),
    "fleet_hash": ("fleet",),
    "plugin_hashes": ("plugins",),
    "noise_multiplier": ("privacy", "rounds", "sampling", "population", "data_folder"),
}
"""Settings that say what a run was made of, and what that follows from: once this changes, they say nothing."""

PATHS = ("data_folder", "plugins", "start_from", "weights")
"""Settings that are paths, beside those of populations."""


TLS = ("ca", "certificate", "key")
CLUSTER = ("scheduler", *TLS)
"""Settings of an engine that are about a cluster."""


@part
class Evaluation:
    """When every client's own model is evaluated (the last round always)."""

    every: Count = 1
    """Every so many rounds; the last one always."""
    clients: Annotated[int, Field(ge=0)] = 0
    """How many clients are evaluated: the same every time, drawn by the seed (0: all). Of newcomers, so many too."""
    metrics: tuple[str, ...] = ("auto",)
    """What models are judged by after the last round (auto: the usual metrics of the problem; none: by accuracy and
    loss alone, and nothing else is counted)."""
    baseline: Literal["none", "local"] = "none"
    """`local`: every client also trains alone, beside the run, so that it is known what it gains."""
    precision: Precision = "fp32"
    """The arithmetic of scores: single precision, or `bf16` (see `training.precision`)."""

    @model_serializer(mode="wrap")
    def _without_everyone(self, usual: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave the number of clients out where all are evaluated."""
        return {key: value for key, value in usual(self).items() if key != "clients" or value}


@part
class Checkpoints:
    """How often the state is saved, and how many of the last are kept (the best on validation always)."""

    every: Count = 1
    """Every so many rounds; the last one always."""
    keep: Count = 2
    """How many of the last ones stay."""


@part
class EngineSettings:
    """Which engine carries the tasks; results do not depend on it."""

    name: str = "local"
    """`local` (worker processes), `dask` (the workers of a cluster) or `debug` (one client after the other, in this
    process)."""
    workers: Annotated[int, Field(ge=0)] = 0
    """Worker processes (0: one a core; on a cluster all that there are)."""
    device: str = "auto"
    """cpu, cuda, ... (auto: a GPU, if there is one)."""
    allow_slow: bool = False
    """Whether arithmetic that the processor has no instructions for is emulated, slowly, instead of refused."""
    scheduler: str = ""
    """Where the scheduler of a cluster is, for `dask`: tcp://HOST:PORT, or tls://HOST:PORT."""
    ca: str = ""
    """For tls: the file of the authority that both sides' certificates are of."""
    certificate: str = ""
    """For tls: the file of the certificate that this side shows."""
    key: str = ""
    """For tls: the file of that certificate's key."""

    @model_serializer(mode="wrap")
    def _without_an_empty_cluster(self, usual: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out what is only about a cluster, where there is none."""
        return {key: value for key, value in usual(self).items() if value or key not in CLUSTER}


class Settings(BaseModel):
    """All settings of a run."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, ser_json_inf_nan="constants", coerce_numbers_to_str=True
    )

    name: str = "run"
    """The name of the run, and of its folder."""
    seed: Annotated[int, Field(ge=0)] = 0
    """What every random draw follows from."""
    rounds: Count = 20
    """How many rounds are played."""
    min_updates: Count = 1
    """How many clients must answer for a round to count."""
    method: Choice = Field(default_factory=lambda: {"name": "fedavg"})
    """The method: a name, or a table with `name` and its own settings."""
    sharing: Choice = Field(default_factory=dict)
    """Which blocks there are and who shares them (empty: as the method says)."""
    objective: Choice = Field(default_factory=dict)
    """What clients minimise (empty: as the method says)."""
    merge: Choice = Field(default_factory=dict)
    """How updates become the next version (empty: as the method says)."""
    data_folder: str = ""
    """Where data sets are looked for first."""
    split_hash: str = ""
    """Which split the settings stand for; written with a run, checked when it is run again."""
    start_from: str = ""
    """An earlier run's folder: blocks go on from its last round wherever address and shapes are the same."""
    population: Choice = Field(default_factory=lambda: {"name": "digits"})
    """Who the clients are, and their data."""
    public: Choice = Field(default_factory=dict)
    """A population whose data, all of it, is the server's and no client's (empty: the share that the population
    itself sets apart, if it does)."""
    model: Choice = Field(default_factory=lambda: {"name": "mlp"})
    """The model of all clients that have none of their own in `models`."""
    models: dict[str, Choice] = Field(default_factory=dict)
    """Models of their own for clients with this `model` or `device`."""
    adapters: Choice = Field(default_factory=lambda: {"name": "none"})
    """Small trainable layers beside frozen ones, in every model: `parallel` or `series`."""
    weights: str = ""
    """A safetensors file that all models start from; only an output layer of another size starts afresh."""
    weights_hash: str = ""
    """Which file `weights` stands for; written with a run, checked when it is run again."""
    codec: Choice = Field(default_factory=lambda: {"name": "none"})
    """How clients' updates travel: `fp16`, `int8` or `topk` instead of full values."""
    secure_sums: SecureSums = Field(default_factory=SecureSums)
    """Whether clients' updates travel under masks, so that the server learns sums alone."""
    cut: dict[str, str | tuple[str, ...]] = Field(default_factory=dict)
    """A cut of one's own: patterns by block; empty: the sharing decides."""
    training: Training = Field(default_factory=Training)
    """How a client trains in a round."""
    sampling: Sampling = Field(default_factory=Sampling)
    """Which clients take part in a round."""
    fleet: Fleet = Field(default_factory=Fleet)
    """What clients' devices can do, and how long the server waits for them, in virtual time."""
    fleet_hash: str = ""
    """Which table `fleet.path` stands for; written with a run, checked when it is run again."""
    privacy: Privacy = Field(default_factory=Privacy)
    """What may become known of a client or a sample."""
    noise_multiplier: Annotated[float, Field(ge=0)] = 0.0
    """The noise that `privacy.epsilon` led to; written with a run, so that it goes on with the same."""
    evaluation: Evaluation = Field(default_factory=Evaluation)
    """When, and by what, clients' own models are evaluated."""
    checkpoints: Checkpoints = Field(default_factory=Checkpoints)
    """How often the state is saved."""
    engine: EngineSettings = Field(default_factory=EngineSettings)
    """What carries the tasks; results do not depend on it."""
    defence: Defence = Field(default_factory=Defence)
    """What bounds clients' updates and claims, and when a client is left out."""
    plugins: tuple[str, ...] = ()
    """Python files of one's own whose methods, models and other parts can be named here."""
    plugin_hashes: tuple[str, ...] = ()
    """Which files `plugins` stands for; written with a run, checked when it is run again."""

    @model_serializer(mode="wrap")
    def _without_empty_plugins(self, usual: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave plug-ins out where there are none, and guards that are off."""
        plugged = ("plugins", "plugin_hashes", "privacy", "noise_multiplier", "fleet_hash")
        off = {"secure_sums"} if not self.secure_sums.on else set()
        off |= {"defence"} if self.defence == Defence() else set()
        off |= {"fleet"} if self.fleet == Fleet() else set()
        return {k: value for k, value in usual(self).items() if (value or k not in plugged) and k not in off}

    def to_toml(self) -> str:
        """Return the settings as TOML."""
        return tomli_w.dumps(self.model_dump(mode="json"))


def recipes() -> dict[str, str]:
    """Return the recipes that come with the package, by name, as TOML."""
    folder = resources.files("intarsia") / "recipes"
    return {
        Path(entry.name).stem: entry.read_text()
        for entry in sorted(folder.iterdir(), key=lambda e: e.name)
        if entry.name.endswith(".toml")
    }


Source = str | Path | Mapping[str, Any] | Settings
"""Where settings come from: a recipe's name, a TOML file, a dict, or settings."""


def load(source: Source, changes: Iterable[str] = ()) -> Settings:
    """Read settings from a recipe's name, a TOML file, a dict or settings; then apply `a.b=c` changes.

    Where they name another method, settings that this one does not have are left out, with a warning that names them.
    Relative paths lead from the file that names them; in changes and dicts, from the working folder.
    """
    table, asked = table_of(source), listed(changes)
    return check(_changed_run(table, refitted(table, lambda own: changed(own, asked))))


def changed(table: Mapping[str, Any], changes: Iterable[str]) -> dict[str, Any]:
    """Return a table with changes, written as `a.b=c`, put in one after the other."""
    result = dict(table)
    for change in listed(changes):
        _apply(result, change)
    return result


def listed(changes: Iterable[str]) -> list[str]:
    """Return changes as a list; what is no list of texts is refused."""
    if isinstance(changes, str | Mapping) or not isinstance(changes, Iterable):
        raise SettingsError(f'changes: give a list, for example ["rounds=1"], not {in_words(changes)}')
    found = list(changes)
    for change in found:
        if not isinstance(change, str):
            raise SettingsError(f"changes: write each as text, a.b=c, not {in_words(change)}")
    return found


def with_values(settings: Settings, values: Mapping[str, Any]) -> Settings:
    """Return the settings with values by dotted name put in; a table goes in before what lies in it."""
    before = table_of(settings)
    return check(_changed_run(before, refitted(before, lambda own: _with(own, values))))


def _with(table: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    result = dict(table)
    for path in sorted(values, key=lambda path: path.count(".")):
        _put(result, path, values[path])
    return result


def _changed_run(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """Return changed settings with whole paths, without records that the changes made untrue."""
    table = anchored(after, Path.cwd())
    untrue = [
        record
        for record, sources in RECORDED.items()
        if any(table.get(source) != before.get(source) for source in sources)
        and table.get(record) == before.get(record)
    ]
    return {key: value for key, value in table.items() if key not in untrue}


def anchored(table: Mapping[str, Any], home: Path) -> dict[str, Any]:
    """Return settings whose relative paths lead from this folder, as whole paths."""
    found = {key: _whole(table[key], home) for key in PATHS if key in table}
    for key in ("population", "public", "fleet"):
        if isinstance(table.get(key), Mapping):
            found[key] = _anchored_population(table[key], home)
    if isinstance(engine := table.get("engine"), Mapping):
        found["engine"] = {key: _whole(own, home) if key in TLS else own for key, own in engine.items()}
    return {**table, **found}


def _anchored_population(table: Mapping[str, Any], home: Path) -> dict[str, Any]:
    """Return a population whose files, and those of its members, are looked for from this folder."""
    found = dict(table)
    if "path" in found:
        found["path"] = _whole(found["path"], home)
    if isinstance(found.get("members"), Mapping):
        found["members"] = {
            name: _anchored_population(member, home) if isinstance(member, Mapping) else member
            for name, member in found["members"].items()
        }
    return found


def _whole(path: Any, home: Path) -> Any:
    """Return a path, if it is one, or several, so that they mean the same from everywhere."""
    if isinstance(path, list | tuple):
        return [_whole(one, home) for one in path]
    return os.path.abspath(home / Path(path).expanduser()) if isinstance(path, str | Path) and path else path


def portable(settings: Settings) -> Settings:
    """Return settings whose paths are mere names: for texts that leave this machine."""

    def named(value: Any, path: bool = False) -> Any:
        if isinstance(value, Mapping):
            return {key: named(own, key in (*PATHS, *TLS, "path")) for key, own in value.items()}
        if isinstance(value, list):
            return [named(one, path) for one in value]
        return Path(value).name if path and isinstance(value, str) else value

    return check(named(settings.model_dump(mode="json")))


def parse_value(text: str) -> Any:
    """Return a value written as in TOML; what is no TOML is a string."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def check(table: Mapping[str, Any]) -> Settings:
    """Make settings of a table, or say what is wrong with it."""
    try:
        return Settings.model_validate(table)
    except ValidationError as error:
        raise SettingsError(explain(error, Settings)) from None


def table_of(source: Source) -> dict[str, Any]:
    """Return settings as a table, from wherever they come, with whole paths."""
    if isinstance(source, Settings):
        return anchored(source.model_dump(mode="json"), Path.cwd())
    if isinstance(source, Mapping):
        return anchored(source, Path.cwd())
    if not isinstance(source, str | Path):
        raise SettingsError(
            f"settings: give a recipe's name, a TOML file, a dict or Settings, not {in_words(source)}"
        )
    known = recipes()
    if str(source) in known:
        return tomllib.loads(known[str(source)])
    return _read(Path(source), known)


def _read(path: Path, known: Iterable[str]) -> dict[str, Any]:
    if path.suffix != ".toml" and not path.exists():
        raise SettingsError(f"there is no recipe or file '{path}'{suggest(str(path), known)}")
    if path.is_dir():
        here = path / "settings.toml"
        raise SettingsError(
            f"{path} is a folder, not a settings file"
            + (f": try {here}, or open the run in it: intarsia.open_run('{path}')" if here.exists() else "")
        )
    return anchored(read_toml(path), path.parent)


def _apply(table: dict[str, Any], change: str) -> None:
    path, sign, text = change.partition("=")
    if not sign or not all(path.strip().split(".")):
        raise SettingsError(f"'{change}' is no change: write a.b=c, for example training.lr=0.1")
    _put(table, path.strip(), parse_value(text.strip()))


def _put(table: dict[str, Any], path: str, value: Any) -> None:
    *outer, last = path.split(".")
    for key in outer:
        inner = table.get(key, {})
        inner = {"name": inner} if isinstance(inner, str) else inner
        if not isinstance(inner, dict):
            raise SettingsError(f"'{path}': '{key}' is a single value, it has no settings of its own")
        table[key] = dict(inner)
        table = table[key]
    table[last] = value
