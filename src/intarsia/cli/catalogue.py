"""What there is to choose from, and what each of it is: methods and their parts, models, data, recipes."""

from __future__ import annotations

import ast
import inspect
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import is_dataclass
from functools import partial
from itertools import pairwise
from textwrap import dedent
from typing import Annotated, Any, get_args, get_origin

from pydantic import ValidationError
from pydantic.fields import FieldInfo

from intarsia.blocks import CODECS
from intarsia.core import REGISTRIES, SettingsError, suggest, usable, warn
from intarsia.data import DATASETS, PARTITIONS, POPULATIONS, Digits, places
from intarsia.experiment import Settings, plug_in_named, recipes
from intarsia.methods import MERGES, METHODS, SHARINGS, Method
from intarsia.models import ADAPTERS, MODELS
from intarsia.setup import obstacle
from intarsia.training import OBJECTIVES
from intarsia.tuning import text_of

Rows = list[dict[str, str]]
PARTS = ("sharing", "objective", "merge")
TABLES = (
    "training",
    "sampling",
    "privacy",
    "evaluation",
    "checkpoints",
    "engine",
    "secure_sums",
    "defence",
    "fleet",
)
KINDS: dict[str, tuple[str, Mapping[str, type]]] = {
    "methods": ("method", METHODS),
    "sharings": ("sharing", SHARINGS),
    "objectives": ("objective", OBJECTIVES),
    "merges": ("merge", MERGES),
    "models": ("model", MODELS),
    "adapters": ("adapters", ADAPTERS),
    "codecs": ("codec", CODECS),
    "populations": ("population", POPULATIONS),
    "partitions": ("population.partition", PARTITIONS),
}
"""What settings name, by the word for many of it: the setting that names it, and all there are."""


def _parts(kinds: Mapping[str, type]) -> Rows:
    return [{"name": name, "summary": _summary(kind)} for name, kind in sorted(usable(kinds).items())]


def _summary(kind: type) -> str:
    return str(getattr(kind, "summary", "") or (inspect.getdoc(kind) or "").partition("\n")[0])


def _methods() -> Rows:
    known = usable(METHODS)
    return [
        {"name": row["name"], **_usual_parts(known[row["name"]]), "summary": row["summary"]}
        for row in _parts(known)
    ]


def _usual_parts(method: type[Method]) -> dict[str, str]:
    """Return the names of a method's parts, unless it cannot be made without settings."""
    usual = _made(method)
    return {part: "" if usual is None else getattr(usual, part).name for part in PARTS}


def secure_sums_rows() -> Rows:
    """Return which methods can sum under masks, and why the others cannot; those that need settings to be made, not."""
    made = [(name, _made(kind)) for name, kind in sorted(usable(METHODS).items())]
    reasons = [(name, obstacle(method)) for name, method in made if method is not None]
    return [{"name": name, "secure sums": "no" if why else "yes", "summary": why} for name, why in reasons]


def _made(method: type[Method]) -> Method | None:
    try:
        return method()
    except ValidationError:
        return None


def _datasets() -> Rows:
    rows = [{"name": "digits", "here": "embedded", "summary": f"population 'digits': {Digits.summary}"}]
    for name, dataset in sorted(usable(DATASETS).items()):
        found = dataset.find(places())
        here = f"{found.form.name} in {found.folder}" if found else "no"
        rows.append({"name": name, "here": here, "summary": dataset.summary})
    return rows


def _recipes() -> Rows:
    return [
        {"name": name, "summary": text.splitlines()[0].removeprefix("# ")} for name, text in recipes().items()
    ]


def rows_of(what: str) -> Rows:
    """Return one list, the user's and other packages' plug-ins included; warn of those that cannot be used."""
    plug_in_named()
    for trouble in REGISTRIES[what].troubles() if what in REGISTRIES else ():
        warn(trouble)
    return LISTS[what]()


LISTS: dict[str, Callable[[], Rows]] = {
    **{word: partial(_parts, kinds) for word, (_, kinds) in KINDS.items()},
    "methods": _methods,
    "secure-sums": secure_sums_rows,
    "datasets": _datasets,
    "recipes": _recipes,
}


def explained(name: str) -> list[dict[str, Any]]:
    """Return what is known of everything that settings call so: its kind, its text and its settings."""
    plug_in_named()
    known = dict(KINDS.values())
    found = [_explained(where, name, kinds[name]) for where, kinds in known.items() if name in kinds]
    if name in TABLES:
        found.append(_explained(name, "", type(getattr(Settings(), name))))
    found += _one_setting(name)
    if not found:
        names = {word for kinds in known.values() for word in kinds} | set(TABLES)
        close = suggest(name, names)
        cure = close if "did you mean" in close else f"; see: intarsia list {'|'.join(KINDS)}"
        raise SettingsError(f"there is nothing called '{name}'{cure}")
    return found


def _one_setting(name: str) -> list[dict[str, Any]]:
    """Return what is known of one setting of a table, as `training.lr`; nothing where there is none."""
    table = name.partition(".")[0]
    if table == name or table not in TABLES:
        return []
    whole = _explained(table, "", type(getattr(Settings(), table)))
    rows = [row for row in whole["settings"] if row["setting"] == name]
    return [{**whole, "settings": rows}] if rows else []


def settings_rows() -> Rows:
    """Return what stands at the top of settings: names, types, defaults and meanings."""
    meanings, usual, rows = _meanings_in(Settings), Settings().model_dump(), []
    for key, field in Settings.model_fields.items():
        row = {**_row("", key, field, meanings.get(key, "")), "setting": key}
        if "Any" in row["type"]:
            default = usual[key].get("name", "")
            row |= {"type": row["type"].replace("table of Any", "name or table"), "default": default}
        rows.append(row)
    return rows


def _explained(where: str, name: str, kind: type) -> dict[str, Any]:
    return {"kind": where, "name": name, "text": inspect.getdoc(kind) or "", "settings": _rows(where, kind)}


def _rows(where: str, kind: type) -> Rows:
    """Return all settings of a class; of those that are tables without a name, what is in them."""
    meanings, rows = _meanings(kind), []
    fields: Mapping[str, FieldInfo] = getattr(kind, "__pydantic_fields__", {})
    for key, field in fields.items():
        inner = field.annotation
        if isinstance(inner, type) and is_dataclass(inner) and not hasattr(inner, "name"):
            rows += _rows(f"{where}.{key}", inner)
        else:
            rows.append(_row(where, key, field, meanings.get(key, "")))
    return rows


def _row(where: str, key: str, field: FieldInfo, meaning: str) -> dict[str, str]:
    """Return one setting as people write it, with its type, its default and its sentence."""
    default = "must be given" if field.is_required() else field.get_default(call_default_factory=True)
    name = getattr(default, "name", None)
    if key in PARTS and where == "method":
        more = f"settings of its own: intarsia explain {name}"
        return {"setting": key, "type": f"intarsia list {key}s", "default": str(name), "meaning": more}
    return {
        "setting": f"{where}.{key}",
        "type": _in_words(
            Annotated[field.annotation, *field.metadata] if field.metadata else field.annotation
        ),
        "default": text_of(default) if name is None else str(name),
        "meaning": meaning,
    }


def _in_words(kind: Any) -> str:
    """Return a type as people read it: `float > 0`, `list of int`, `own | drawn`."""
    first, *rest = get_args(kind) or (None,)
    match get_origin(kind):
        case None:
            return str(getattr(kind, "name", kind.__name__ if isinstance(kind, type) else kind))
        case typing.Annotated:
            return " ".join((_in_words(first), *(word for bound in rest for word in _bounds(bound))))
        case typing.Literal:
            return " | ".join(map(text_of, get_args(kind)))
        case types.UnionType | typing.Union:
            return " | ".join(map(_in_words, get_args(kind)))
        case origin if issubclass(origin, Mapping):
            return f"table of {_in_words(rest[-1])}"
    inner = list(dict.fromkeys(_in_words(each) for each in get_args(kind) if each is not ...))
    return f"list of {' or '.join(inner)}"


def _bounds(bound: Any) -> list[str]:
    signs = {"ge": ">=", "gt": ">", "le": "<=", "lt": "<", "min_length": "at least", "max_length": "at most"}
    limits = bound.metadata if isinstance(bound, FieldInfo) else (bound,)
    return [f"{sign} {getattr(m, at)}" for m in limits for at, sign in signs.items() if hasattr(m, at)]


def _meanings(kind: type) -> dict[str, str]:
    """Return the sentence below each annotated field of a class, and of those that it inherits from."""
    found: dict[str, str] = {}
    for owner in reversed(kind.__mro__):
        if is_dataclass(owner):
            found |= _meanings_in(owner)
    return found


def _meanings_in(owner: type) -> dict[str, str]:
    """Return the sentence below each annotated field that is written in a class itself."""
    found: dict[str, str] = {}
    for field, below in pairwise(_statements(owner)):
        match field, below:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                found[name] = " ".join(text.split())
    return found


def _statements(owner: type) -> list[ast.stmt]:
    """Return what is written in a class; nothing of a plug-in that comes without its source."""
    try:
        tree = ast.parse(dedent(inspect.getsource(owner))).body[0]
    except (OSError, TypeError):
        return []
    return tree.body if isinstance(tree, ast.ClassDef) else []
