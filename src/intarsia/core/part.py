"""Parts: small frozen classes whose fields are settings, checked whenever one is made."""

from __future__ import annotations

import dataclasses
import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar, dataclass_transform

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from intarsia.core.errors import SettingsError

T = TypeVar("T")


@dataclass_transform(frozen_default=True, field_specifiers=(Field,))
def part(kind: type[T]) -> type[T]:
    """Make a class a part: its annotated fields are settings; an unknown or wrong one is an error."""
    return dataclass(
        frozen=True,
        config=ConfigDict(extra="forbid", ser_json_inf_nan="constants", coerce_numbers_to_str=True),
    )(kind)  # type: ignore[return-value]


def build_part(
    kinds: Mapping[str, type[T]], choice: Mapping[str, Any], where: str, default: T | None = None
) -> T:
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
        raise SettingsError(explain(error, kind, where)) from None


def fields_of(value: Any) -> dict[str, Any]:
    """Return the settings of a part by name."""
    return {f.name: getattr(value, f.name) for f in _fields(type(value))}


def describe(value: Any, *, leave_out: Sequence[str] = ()) -> dict[str, Any]:
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


def some(names: Sequence[str], most: int = 10) -> str:
    """Return names in a row; of many, the first ones."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def in_words(value: Any) -> str:
    """Return what was given, in few words: a short plain value itself, else what kind of thing it is."""
    if isinstance(value, type):
        return f"the class {value.__name__}"
    if value is None or (isinstance(value, bool | int | float | str) and len(repr(value)) <= 60):
        return repr(value)
    return f"a {type(value).__name__}"


def explain(error: ValidationError, kind: Any, where: str = "") -> str:
    """Say what is wrong with settings of this kind, line by line, with suggestions."""
    lines = []
    for problem in filter(_meant, error.errors()):
        place = [str(step) for step in problem["loc"] if not BRANCH.fullmatch(str(step))]
        at = ".".join([*([where] if where else []), *place]) or "settings"
        if problem["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
            names = _keys_at(kind, place[:-1])
            lines.append(f"{at}: unknown setting{suggest(place[-1], names)}")
        elif problem["type"] in ("missing", "missing_argument"):
            lines.append(f"{at}: this must be given")
        elif problem["type"] == "union_tag_not_found":
            lines.append(f"{at}: write a number, or a table with the name of what it is")
        elif problem["type"] == "union_tag_invalid":
            about = problem["ctx"]
            lines.append(f"{at}.name: there is no '{about['tag']}'; there are: {about['expected_tags']}")
        else:
            said, given = problem["msg"], problem["input"]
            lines.append(f"{at}: {said[:1].lower()}{said[1:]} (got {given!r}){_point(given)}")
    return "\n".join(lines)


BRANCH = re.compile(r"(constrained-)?float|tagged-union\[.*\]")
"""What pydantic calls a number, or one of several tables, where a setting may be either: no place in the settings."""


def _meant(problem: Any) -> bool:
    """Return whether a setting that may be a number or a table was meant as what this says that it is not."""
    last = str(problem["loc"][-1]) if problem["loc"] else ""  # a key that is no text has no place
    table = isinstance(problem["input"], Mapping)
    return not BRANCH.fullmatch(last) or table == last.startswith("tagged-union")


def _point(given: Any) -> str:
    """Say how a number with a decimal comma is written."""
    comma = isinstance(given, str) and re.fullmatch(r"[+-]?\d*,\d+", given.strip())
    return f": write {given.strip().replace(',', '.')}" if comma else ""


def _keys_at(kind: Any, place: Sequence[str]) -> list[str]:
    for step in place:
        kind = _kinds_of(kind).get(step)
    return list(_kinds_of(kind))


def _kinds_of(kind: Any) -> dict[str, Any]:
    """Return what kind each setting of a class is, by name."""
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return {name: field.annotation for name, field in kind.model_fields.items()}
    return {field.name: field.type for field in _fields(kind)}


def _fields(kind: Any) -> tuple[dataclasses.Field[Any], ...]:
    return dataclasses.fields(kind) if dataclasses.is_dataclass(kind) else ()
