"""What there is to choose from: methods, models, data sets, recipes."""

from __future__ import annotations

from collections.abc import Callable
from inspect import getdoc

from intarsia.data import POPULATIONS
from intarsia.methods import METHODS
from intarsia.models import MODELS
from intarsia.settings import recipes

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
    return [{"name": name, "summary": source.summary} for name, source in sorted(POPULATIONS.items())]


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
    "recipes": _recipes,
}
