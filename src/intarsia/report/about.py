"""What runs are made of: their methods and how these deviate from the papers, settings, versions."""

from __future__ import annotations

import html
import inspect
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from intarsia.methods import METHODS
from intarsia.report.elements import folded, html_table
from intarsia.report.run_view import RunView, settings_of
from intarsia.report.sections.base import Part
from intarsia.report.series import Series
from intarsia.runs import read_versions

DEVIATES = re.compile(r"(?<![\w-])(Deviations|Ours)(?=[:,])")
"""What stands in a method's description before what is not as in its paper."""
COMMON, GENERAL = "all", "general"
Table = Mapping[str, Any]


def about_parts(series: Sequence[Series]) -> list[Part]:
    """Return what a page says of how its runs were made."""
    views = [view for own in series for view in own.views]
    return [*_method_parts(views), ("Settings", _settings(series)), *_version_parts(views)]


def _method_parts(views: Sequence[RunView]) -> list[Part]:
    names = [name for name in dict.fromkeys(view.method for view in views) if name in METHODS]
    if not names:
        return []
    return [("Methods, and where they deviate from the papers", "".join(map(_method, names)))]


def _method(name: str) -> str:
    summary, described, deviations = described_method(name)
    heading = f"<h3>{html.escape(METHODS[name].title)}</h3>"
    texts = [summary, described, f"{deviations[0].upper()}{deviations[1:]}" if deviations else ""]
    return heading + "".join(f"<p>{_with_code(text)}</p>" for text in texts if text)


def described_method(name: str) -> tuple[str, str, str]:
    """Return what a method is, what more its description says, and where it deviates from its paper."""
    summary, _, rest = (inspect.getdoc(METHODS[name]) or "").partition("\n")
    rest = " ".join(rest.split())
    found = DEVIATES.search(rest)
    at = len(rest) if found is None else found.start()
    return summary, rest[:at].strip(), rest[at:].strip()


def _with_code(text: str) -> str:
    return re.sub("`([^`]*)`", r"<code>\1</code>", html.escape(text))


def _settings(series: Sequence[Series]) -> str:
    """Return the settings: what differs between experiments, then what they have in common, table by table."""
    each = [settings_of(own.views[0].run) for own in series]
    seeds = [", ".join(str(view.summary["seed"]) for view in own.views) for own in series]
    each = [{**own, "seed": of} for own, of in zip(each, seeds, strict=True)]
    keys = list(dict.fromkeys(key for own in each for key in own))
    same = [key for key in keys if all(key in own and own[key] == each[0][key] for own in each)]
    differ = [key for key in keys if key not in same]
    found = ""
    if differ:
        heads = ("What differs", *(own.label for own in series))
        found = html_table(heads, [(key, *(_cell(own, key) for own in each)) for key in differ])
    return found + _by_table({key: each[0][key] for key in same}, "in common" if differ else "")


def _by_table(settings: Table, whose: str) -> str:
    """Return settings table by table, each opened when it is asked for."""
    tables: dict[str, list[tuple[str, str]]] = {}
    for key in settings:
        table = key.partition(".")[0] if "." in key else GENERAL
        tables.setdefault(table, []).append((key, _cell(settings, key)))
    return "".join(
        folded(
            f"{html.escape(table)}{f', {whose}' if whose else ''}: {_short(rows)}",
            html_table(("Setting", "Value"), rows),
        )
        for table, rows in tables.items()
    )


def _short(rows: Sequence[tuple[str, str]]) -> str:
    named = next((value for key, value in rows if key.split(".")[1:] == ["name"] or key == "name"), "")
    return f"<b>{html.escape(named)}</b>" if named else f"{len(rows)} settings"


def _cell(settings: Table, key: str) -> str:
    if key not in settings:
        return "-"
    value = settings[key]
    return value if isinstance(value, str) and value else json.dumps(value, ensure_ascii=False)


def _version_parts(views: Sequence[RunView]) -> list[Part]:
    found: dict[str, list[str]] = {}
    for view in views:
        for noted in read_versions(view.run.path):
            found.setdefault(json.dumps(noted), []).append(view.label)
    if not found:
        return []
    names = list(dict.fromkeys(name for noted in found for name in json.loads(noted)))
    rows = [
        (
            COMMON if len(labels) == len(views) else ", ".join(labels),
            *(json.loads(noted).get(n, "-") for n in names),
        )
        for noted, labels in found.items()
    ]
    return [("Versions", html_table(("Runs", *names), rows))]
