"""What there is to choose from: methods, models, data sets, recipes."""

from __future__ import annotations

from collections.abc import Callable
from inspect import getdoc

from intarsia.blocks import CODECS
from intarsia.data import DATASETS, PARTITIONS, POPULATIONS, Digits, places
from intarsia.experiment import recipes
from intarsia.methods import METHODS
from intarsia.models import ADAPTERS, MODELS

Rows = list[dict[str, str]]


def _methods() -> Rows:
    return [
        {
            "name": name,
            "sharing": method().sharing.name,
            "objective": method().objective.name,
            "merge": method().merge.name,
            "summary": _first_line(method),
        }
        for name, method in sorted(METHODS.items())
    ]


def _models() -> Rows:
    return [{"name": name, "summary": model.summary} for name, model in sorted(MODELS.items())]


def _datasets() -> Rows:
    rows = [{"name": "digits", "here": "embedded", "summary": f"population 'digits': {Digits.summary}"}]
    for name, dataset in sorted(DATASETS.items()):
        found = dataset.find(places())
        here = f"{found.form.name} in {found.folder}" if found else "no"
        rows.append({"name": name, "here": here, "summary": dataset.summary})
    return rows


def _populations() -> Rows:
    return [{"name": name, "summary": source.summary} for name, source in sorted(POPULATIONS.items())]


def _partitions() -> Rows:
    return [{"name": name, "summary": rule.summary} for name, rule in sorted(PARTITIONS.items())]


def _adapters() -> Rows:
    return [{"name": name, "summary": kind.summary} for name, kind in ADAPTERS.items()]


def _codecs() -> Rows:
    return [{"name": name, "summary": kind.summary} for name, kind in CODECS.items()]


def _recipes() -> Rows:
    return [
        {"name": name, "summary": text.splitlines()[0].removeprefix("# ")} for name, text in recipes().items()
    ]


def _first_line(kind: type) -> str:
    return (getdoc(kind) or "").partition("\n")[0]


CATALOGUE: dict[str, Callable[[], Rows]] = {
    "methods": _methods,
    "models": _models,
    "datasets": _datasets,
    "populations": _populations,
    "partitions": _partitions,
    "adapters": _adapters,
    "codecs": _codecs,
    "recipes": _recipes,
}
