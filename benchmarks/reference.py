"""The reference, from types and docstrings: `python -m benchmarks.reference` writes docs/settings.md and docs/api.md.

Settings come from the classes that read them, as in `intarsia explain`. The page of the API names every public name of
the package once; mkdocstrings puts the docstrings in when the site is built.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import intarsia
from intarsia import api
from intarsia.cli.catalogue import KINDS, TABLES, explained, settings_rows
from intarsia.core import write_atomically

DOCS = Path(__file__).parents[1] / "docs"
WORDS = {
    "methods": "Methods",
    "sharings": "Sharings",
    "objectives": "Objectives",
    "merges": "Merges",
    "models": "Models",
    "adapters": "Adapters",
    "codecs": "Codecs",
    "populations": "Populations",
    "partitions": "Partitions",
}
API: dict[str, Sequence[str]] = {
    "Running": ("run", "resume", "open_run", "compare", "tune", "preview", "pretrain", "load", "plug_in"),
    "Runs": ("Run", "RunClient", "SeedRuns", "Tuning", "Trial"),
    "Settings": ("Settings", "Training"),
    "Data": ("from_dict", "Population", "ClientInfo"),
    "Watching": ("Observer", "RoundReport", "RunStopped", "TuningObserver"),
    "Blocks": ("Address", "Block", "Cut"),
    "Methods": ("part", "Method", "Sharing", "Exchange", "Server", "LocalClient"),
    "Objectives": ("Objective", "Situation", "Batch", "Proximal"),
    "Merges": ("Merge", "Fold", "Sums", "Nova", "SliceMean"),
    "Chance": ("chance",),
    "Models": ("models",),
    "Errors and warnings": ("IntarsiaError", "IntarsiaWarning", "JudgedWarning"),
}
"""Every public name, by what it is for."""
OF_MODELS = ("Architecture", "add_adapters", "remove_adapters", "load_weights", "mobilenet_from_tensorflow")
STUDIES = "intarsia.papers"
"""Controls of studies have names while a study runs, and no page."""
SETTINGS_HEAD = """# Settings

Made by `python -m benchmarks.reference` from types and docstrings; do not edit. `intarsia explain NAME` says the same
in a terminal.

A setting has one name, everywhere: in a TOML file (`[training]`, `lr = 0.1`), on a command line
(`--set training.lr=0.1`) and in Python (`changes=["training.lr=0.1"]`). What is unknown or out of bounds is an error
that says where, with a suggestion. A part with settings of its own (`method`, `model`, ...) is a name, or a table with
`name` and more: `method = { name = "fedem", components = 2 }`. A run's `settings.toml` has all of them.

Often wanted: [`rounds`](#at-the-top), [`training.lr`](#training), [`sampling.fraction`](#sampling),
[`evaluation.baseline`](#evaluation), [`privacy.epsilon`](#privacy), [`sharing.by`](#sharing-all).
"""
API_HEAD = """# API

Made by `python -m benchmarks.reference`; do not edit. All that `import intarsia` gives; anything
else may change without notice.
"""


def settings_page() -> str:
    """Return docs/settings.md."""
    top = [row for row in settings_rows() if row["setting"] not in TABLES]
    parts = [SETTINGS_HEAD, "## At the top", table(top)]
    for name in TABLES:
        (entry,) = [found for found in explained(name) if found["kind"] == name]
        parts += [f"## {name}", first_paragraph(entry["text"]), table(entry["settings"])]
    for word, (where, kinds) in KINDS.items():
        parts += [f"## {WORDS[word]}", f"What `{where}` can be."]
        for name in sorted(name for name, kind in kinds.items() if not kind.__module__.startswith(STUDIES)):
            (entry,) = [found for found in explained(name) if found["kind"] == where]
            more = f" [More](methods/{name.replace('+', '_plus')}.md)." if word == "methods" else ""
            parts += [f"### {where}: {name}", first_paragraph(entry["text"]) + more, *_own(entry["settings"])]
    return "\n\n".join(part.strip() for part in parts) + "\n"


def _own(rows: Sequence[Mapping[str, str]]) -> Iterator[str]:
    """Yield the table of a part, if it has settings."""
    if rows:
        yield table(rows)


def table(rows: Sequence[Mapping[str, str]]) -> str:
    """Return settings as a table."""
    lines = ["| setting | type | default | meaning |", "|---|---|---|---|"]
    for row in rows:
        default = f"`{cell(row['default'])}`" if row["default"] else ""
        lines.append(f"| `{row['setting']}` | {cell(row['type'])} | {default} | {cell(row['meaning'])} |")
    return "\n".join(lines)


def cell(text: str) -> str:
    """Return a text as it may stand in a table."""
    return text.replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*")


def first_paragraph(text: str) -> str:
    """Return the first paragraph of a docstring, in one line."""
    return " ".join(text.partition("\n\n")[0].split()).replace("<", "&lt;").replace("*", "\\*")


def api_page() -> str:
    """Return docs/api.md: every public name once; those that have no group of their own come last."""
    grouped = {name for names in API.values() for name in names}
    rest = tuple(name for name in api.__all__ if name not in {*grouped, "__version__"})
    parts = [API_HEAD]
    for title, names in (API | ({"More": rest} if rest else {})).items():
        parts += [f"## {title}", *(_entry(name) for name in names)]
    return "\n\n".join(part.strip() for part in parts) + "\n"


def _entry(name: str) -> str:
    found = getattr(intarsia, name)
    if name == "models":
        listed = "`, `".join(sorted(intarsia.models.MODELS))
        inner = [_named(f"models.{word}", getattr(found, word)) for word in OF_MODELS]
        return "\n\n".join([f"Architectures by name (`intarsia.models.MODELS`): `{listed}`.", *inner])
    if inspect.ismodule(found):
        return f'::: {found.__name__}\n    options:\n      heading: "intarsia.{name}"'
    return _named(name, found)


def _named(name: str, found: Any) -> str:
    """Return what mkdocstrings puts the docstring of a public name in for."""
    return f'::: {found.__module__}.{found.__qualname__}\n    options:\n      heading: "intarsia.{name}"'


def main() -> None:
    write_atomically(DOCS / "settings.md", settings_page().encode())
    write_atomically(DOCS / "api.md", api_page().encode())


if __name__ == "__main__":
    main()
