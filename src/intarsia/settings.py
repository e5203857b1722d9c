"""Typed settings: from a recipe, a TOML file or a dict; an unknown key is an error with a suggestion."""

from __future__ import annotations

import dataclasses
import difflib
import sys
from collections.abc import Iterable, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, TypeVar

import tomli_w
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, TypeAdapter, ValidationError

from intarsia.blocks import SettingsError, part
from intarsia.planning import Sampling
from intarsia.training import Training

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

P = TypeVar("P")


def _as_table(value: Any) -> Any:
    return {"name": value} if isinstance(value, str) else value


Choice = Annotated[dict[str, Any], BeforeValidator(_as_table)]
"""A named part and its own settings: `"fedprox"`, or a table with `name` and more."""

Count = Annotated[int, Field(ge=1)]


@part
class Evaluation:
    """When every client's own model is evaluated (the last round always)."""

    every: Count = 1


@part
class Checkpoints:
    """How often the state is saved, and how many of the last are kept (the best on validation always)."""

    every: Count = 1
    keep: Count = 2


@part
class EngineSettings:
    """Which engine carries the tasks; results do not depend on it."""

    name: str = "local"
    workers: Annotated[int, Field(ge=0)] = 0
    """Worker processes (0: one a core)."""
    device: str = "auto"


class Settings(BaseModel):
    """All settings of a run."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = "run"
    seed: Annotated[int, Field(ge=0)] = 0
    rounds: Count = 20
    min_updates: Count = 1
    method: Choice = Field(default_factory=lambda: {"name": "fedavg"})
    sharing: Choice = Field(default_factory=dict)
    objective: Choice = Field(default_factory=dict)
    merge: Choice = Field(default_factory=dict)
    population: Choice = Field(default_factory=lambda: {"name": "digits"})
    model: Choice = Field(default_factory=lambda: {"name": "mlp"})
    models: dict[str, Choice] = Field(default_factory=dict)
    """Models of their own for clients with this `model` or `device`."""
    cut: dict[str, str | tuple[str, ...]] = Field(default_factory=dict)
    """A cut of one's own: patterns by block; empty: the sharing decides."""
    training: Training = Field(default_factory=Training)
    sampling: Sampling = Field(default_factory=Sampling)
    evaluation: Evaluation = Field(default_factory=Evaluation)
    checkpoints: Checkpoints = Field(default_factory=Checkpoints)
    engine: EngineSettings = Field(default_factory=EngineSettings)

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


def load(source: str | Path | Mapping[str, Any] | Settings, changes: Iterable[str] = ()) -> Settings:
    """Read settings from a recipe's name, a TOML file, a dict or settings; then apply `a.b=c` changes."""
    table = _table(source)
    for change in changes:
        _apply(table, change)
    return check(table)


def check(table: Mapping[str, Any]) -> Settings:
    """Make settings of a table, or say what is wrong with it."""
    try:
        return Settings.model_validate(table)
    except ValidationError as error:
        raise SettingsError(_explain(error, "", _keys_of(Settings))) from None


def build_part(
    kinds: Mapping[str, type[P]], choice: Mapping[str, Any], where: str, default: P | None = None
) -> P:
    """Make the named part with its settings; without a name, the default with these settings changed."""
    options = {key: value for key, value in choice.items() if key != "name"}
    name = choice.get("name")
    if name is None and default is not None:
        kind, options = type(default), {**fields_of(default), **options}
    elif isinstance(name, str) and name in kinds:
        kind = kinds[name]
    else:
        raise SettingsError(f"{where}: there is no '{name}'{suggest(str(name), kinds)}")
    try:
        return kind(**options)
    except ValidationError as error:
        raise SettingsError(_explain(error, where, [f.name for f in _fields(kind)])) from None


def fields_of(value: Any) -> dict[str, Any]:
    """Return the settings of a part by name."""
    return {f.name: getattr(value, f.name) for f in _fields(type(value))}


def describe(value: Any, leave_out: Sequence[str] = ()) -> dict[str, Any]:
    """Return a part as a complete table: its name and every setting."""
    dumped = TypeAdapter(type(value)).dump_python(value, mode="json")
    return {"name": value.name} | {k: v for k, v in dumped.items() if k not in leave_out}


def suggest(word: str, known: Iterable[str]) -> str:
    """Return what the writer may have meant, as the end of a sentence."""
    names = sorted(known)
    if not names:
        return ""
    close = difflib.get_close_matches(word, names, n=1)
    return f"; did you mean '{close[0]}'?" if close else f"; there are: {', '.join(names)}"


def _table(source: str | Path | Mapping[str, Any] | Settings) -> dict[str, Any]:
    if isinstance(source, Settings):
        return source.model_dump(mode="json")
    if isinstance(source, Mapping):
        return dict(source)
    known = recipes()
    if str(source) in known:
        return tomllib.loads(known[str(source)])
    path = Path(source)
    if path.suffix != ".toml" and not path.exists():
        raise SettingsError(f"there is no recipe or file '{source}'{suggest(str(source), known)}")
    try:
        return tomllib.loads(path.read_text())
    except OSError as error:
        raise SettingsError(f"cannot read {path}: {error.strerror}") from error
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(f"{path} is not TOML: {error}") from error


def _apply(table: dict[str, Any], change: str) -> None:
    path, sign, text = change.partition("=")
    keys = path.strip().split(".")
    if not sign or not all(keys):
        raise SettingsError(f"'{change}' is no change: write a.b=c, for example training.lr=0.1")
    for key in keys[:-1]:
        inner = table.get(key, {})
        inner = {"name": inner} if isinstance(inner, str) else inner
        if not isinstance(inner, dict):
            raise SettingsError(f"'{path}': '{key}' is a single value, it has no settings of its own")
        table[key] = dict(inner)
        table = table[key]
    table[keys[-1]] = _value(text.strip())


def _value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _explain(error: ValidationError, where: str, known: Sequence[str]) -> str:
    lines = []
    for problem in error.errors():
        place = [str(step) for step in problem["loc"]]
        at = ".".join([*([where] if where else []), *place])
        if problem["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
            names = known if len(place) == 1 else _keys_at(place[:-1])
            lines.append(f"{at}: unknown setting{suggest(place[-1], names)}")
        else:
            lines.append(f"{at}: {problem['msg'][:1].lower()}{problem['msg'][1:]} (got {problem['input']!r})")
    return "\n".join(lines)


def _keys_at(place: Sequence[str]) -> list[str]:
    kind: Any = Settings
    for step in place:
        annotation = _annotation(kind, step)
        if annotation is None:
            return []
        kind = annotation
    return _keys_of(kind)


def _annotation(kind: Any, step: str) -> Any:
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        field = kind.model_fields.get(step)
        return field.annotation if field else None
    return next((f.type for f in _fields(kind) if f.name == step), None)


def _keys_of(kind: Any) -> list[str]:
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return list(kind.model_fields)
    return [f.name for f in _fields(kind)]


def _fields(kind: Any) -> tuple[dataclasses.Field[Any], ...]:
    return dataclasses.fields(kind) if dataclasses.is_dataclass(kind) else ()
