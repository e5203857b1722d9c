"""The models that settings name or that are given, as the method takes them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from intarsia.core import (
    SettingsError,
    build_part,
    chance,
)
from intarsia.data import ClientInfo, Population
from intarsia.experiment.given import GIVEN, Given, Models, given_models
from intarsia.experiment.settings import Settings
from intarsia.methods import Method
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
    relu_first,
)
from intarsia.runs import SUMMARY, RunFolder

Built = tuple[dict[str, nn.Module], Mapping[str, str], dict[str, Architecture], dict[str, Spec]]


def build_models(settings: Settings, population: Population, given: Models | None) -> Built:
    """Return models by key, the key of each client, the named architectures, and the models' specs."""
    if given is not None:
        return (*given_models(settings, population, given), {}, {})
    if settings.model.get("name") == GIVEN:
        raise SettingsError(
            "model: this run's model was given in Python; give it again: intarsia.run(settings, model=...), "
            "intarsia.open_run(folder, model=...)"
        )
    unused = settings.models.keys() - {key for i in population.kinds for key in (i.model, i.device)}
    if unused:
        there = sorted({i.device for i in population.kinds})
        raise SettingsError(
            f"models.{min(unused)}: no client has this model or device; devices: {', '.join(there)}"
        )
    kinds = {"": build_part(MODELS, settings.model, "model")}
    kinds |= {i.model: NAMED[i.model] for i in population.kinds if i.model in NAMED}
    kinds |= {key: build_part(MODELS, choice, f"models.{key}") for key, choice in settings.models.items()}
    specs: dict[str, Spec] = {}
    goals = population.goals

    def key_of(info: ClientInfo) -> str:
        which = next((k for k in (info.model, info.device) if k and k in kinds), "")
        key = "/".join([which, "x".join(map(str, info.shape)), *([info.task] if info.task else [])])
        specs.setdefault(key, Spec(kinds[which], info.shape, goals[info.task].outputs))
        return key

    model_of = population.by_kind(key_of)
    models = {key: spec.build(settings.seed) for key, spec in specs.items()}
    return models, model_of, kinds, specs


def read_base(settings: Settings, population: Population, kinds: Mapping[str, Architecture]) -> Base | None:
    """Return the weights that the settings name; such as do not fit the models or the data are refused."""
    if not settings.weights:
        return None
    base = Base.read(Path(settings.weights))
    if settings.weights_hash not in ("", base.sha256):
        raise SettingsError(
            f"weights: {base.path} is another file (sha256 {base.sha256}) than the settings were written for "
            f"({settings.weights_hash}): put it right, or set weights_hash to nothing to take it as it is"
        )
    data = [population.clients[info.name].data for info in population.kinds]
    scalings = [examples.scaling for own in data for examples in own.values()]
    base.check(
        {name for kind in kinds.values() for name in kind.bases},
        {s.inputs for s in scalings if s is not None},
    )
    return base


def origin_of(settings: Settings, given: Given, base: Base | None) -> dict[str, Any]:
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


def narrowed(
    models: Mapping[str, nn.Module], model_of: Mapping[str, str], population: Population, method: Method
) -> tuple[dict[str, nn.Module], Mapping[str, str]]:
    """Return the models, narrower ones for clients that the method gives less than all of one, and who has which."""
    made: dict[str, nn.Module] = {}

    def key_of(info: ClientInfo) -> str:
        whole, width = model_of[info.name], method.width(info)
        key = whole if width == 1 else f"{whole}/width-{width:g}"
        if key not in made:
            made[key] = models[whole] if width == 1 else narrow(models[whole], width)
        return key

    keys = population.by_kind(key_of)
    return made, keys


def forms_of(population: Population, model_of: Mapping[str, str]) -> dict[str, tuple[Shape, int]]:
    """Return the shape of every model's inputs and the number of its outputs."""
    goals = population.goals
    return {model_of[info.name]: (info.shape, goals[info.task].outputs) for info in population.kinds}


def prepared(
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
        if not any(weight.requires_grad for weight in prepared[key].parameters()):
            raise SettingsError(
                "model: no weight of it can be trained, all are frozen: call model.requires_grad_(True), or add "
                "adapters (the setting adapters)"
            )
    return prepared
