"""Data, models and methods that are given in Python instead of being named in settings."""

from __future__ import annotations

import copy
import dataclasses
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from torch import nn

from intarsia.core import (
    DataError,
    SettingsError,
    chance,
    describe,
    differences,
    in_figures,
    in_words,
    warn,
)
from intarsia.data import ATTRIBUTES, ClientInfo, Population
from intarsia.experiment.settings import Settings, Source, listed, load, table_of
from intarsia.methods import Method

GIVEN = "own"
"""The name, in settings, of a population or model that was given in Python."""
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
    if given.data is not None and settings.population.get("name") != GIVEN:
        settings = settings.model_copy(
            update={"split_hash": ""}
        )  # it is of the data that this stands in place of
    return settings


def check_against_run(given: Given, settings: Settings) -> None:
    """Refuse what would stand in place of what a run has; warn of settings of a method that are the run's instead."""
    if given.model is not None and settings.model.get("name") != GIVEN:
        raise SettingsError(
            f"model: this run's model is named in its settings ('{settings.model.get('name')}'): leave out model=..., "
            "or start a new run with it"
        )
    if given.method is None:
        return
    table = settings.model_dump(mode="json")
    described = _described(given.method)
    found = differences(described, {name: table[name] for name in described})
    if found and settings.method.get("name") == given.method.name:
        warn(
            f"the method given has other settings than the run, whose stay ({in_figures(found)}): give them as the run "
            "has them, or start a new run"
        )


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


def given_models(
    settings: Settings, population: Population, given: Models
) -> tuple[dict[str, nn.Module], Mapping[str, str]]:
    """Return the models that were given, by key, and the key of each client."""
    models: dict[str, nn.Module] = {}

    def key_of(info: ClientInfo) -> str:
        key, make = _given_model(given, info)
        if key not in models:
            with chance.torch_seeded(settings.seed, "initial weights", key):
                models[key] = _copied(_made(make, info))
        return key

    model_of = population.by_kind(key_of)
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
    empty = [name for name, weight in model.named_parameters() if weight.is_meta]
    if empty:
        raise DataError(
            f"the model's '{empty[0]}' has no values (it is on device 'meta'): build the model on the cpu"
        )
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
