"""What a page of a method says that the code knows better: its picture, settings, traffic, figures and deviations."""

from __future__ import annotations

import inspect
import json
import re
import shlex
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from benchmarks import privacy
from benchmarks.method_pages.described import PAGES, Described, described
from benchmarks.method_pages.scene import Scene
from benchmarks.sent import PAGE as SENT

from intarsia.cli.catalogue import explained, secure_sums_rows
from intarsia.methods import METHODS, Method
from intarsia.models import ADAPTERS
from intarsia.papers import get
from intarsia.report.about import DEVIATES, described_method

ROOT = PAGES.parents[1]
EVERY = {("sharing", "by"), ("sharing", "norms")}
"""Settings that every sharing has: they stand in the list of methods."""
ROUNDS = "rounds=3"
"""What keeps a page's command short."""
SETTINGS = ("setting", "what may be given, the default, what it does")
LINE = 100
"""How long a line of a command may be."""


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table."""
    lines = [heads, ["---"] * len(heads), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def picture(own: Described, scene: Scene) -> str:
    """Return the picture, and in words what is on it."""
    more = f"; also set: {', '.join(f'`{change}`' for change in own.drawn)}" if own.drawn else ""
    return (
        f"![{own.title}: who shares what. {scene.words}](pictures/{own.page}.svg)\n\n"
        f"Read from the messages of [this run](#run-it) with four clients, in its second round{more}.\n"
    )


def command(own: Described) -> str:
    """Return the command that runs it."""
    sets = [f"--set {_quoted(change)}" for change in (own.changes[0], ROUNDS, *own.changes[1:])]
    lines = ["intarsia run quickstart"]
    for words in sets:
        fits = len(lines[-1]) + len(words) < LINE
        lines = [*lines[:-1], f"{lines[-1]} {words}"] if fits else [*lines, f"    {words}"]
    return "```bash\n" + " \\\n".join(lines) + "\n```\n"


def _quoted(change: str) -> str:
    """Return a change as a shell takes it."""
    return change if shlex.quote(change) == change or change.isidentifier() else f'"{change}"'


def settings(own: Described) -> str:
    """Return the settings of a method and of its parts, with what is worth a search."""
    rows = [setting(row) for kind in explained_of(own) for row in kind if _is_own(row)]
    told = table(SETTINGS, rows) if rows else "None of its own.\n"
    return f"{told}\nWorth a [search](../tuning.md): {tuned(own)}.\n"


def tuned(own: Described) -> str:
    """Return what is worth a search, in words."""
    return f"`{own.tune}`" + (f"; {own.keep}" if own.keep else "")


@cache
def _made(method: str) -> Method:
    return METHODS[method]()


def explained_of(own: Described) -> Iterable[list[dict[str, str]]]:
    """Yield the settings of the method, and of each part that it has by default."""
    if not own.method:
        yield _of("adapters", "parallel")
        return
    method = _made(own.method)
    for where in ("sharing", "objective", "merge"):
        yield _of(where, getattr(method, where).name)
    yield [row for row in _of("method", own.method) if "." in row["setting"]]


@cache
def _of(where: str, name: str) -> list[dict[str, str]]:
    return [row for kind in explained(name) if kind["kind"] == where for row in kind["settings"]]


def _is_own(row: dict[str, str]) -> bool:
    return tuple(row["setting"].split(".")) not in EVERY


def setting(row: dict[str, str]) -> list[str]:
    """Return a setting as a row: its name, and its kind, default and sentence."""
    kind = row["type"].replace("|", "or")
    usual = f", `{row['default']}`" if row["default"] else ""
    return [f"`{row['setting']}`", in_cell(f"{kind}{usual}. {row['meaning']}".rstrip())]


def in_cell(words: str) -> str:
    """Return words that do not end their cell."""
    return words.replace("|", "\\|")


@cache
def sent_rows() -> dict[str, list[list[str]]]:
    """Return what every method sends, from the page that says so, by method."""
    found: dict[str, list[list[str]]] = {}
    part = SENT.read_text().partition("## Training")[2].partition("\n## ")[0]
    for line in part.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        if cells[0] in METHODS or cells[0].partition(",")[0] in METHODS:
            found.setdefault(cells[0], []).append(cells[1:])
    return found


@cache
def covered() -> dict[str, tuple[str, str]]:
    """Return how differential privacy protects a method's clients and samples, by method."""
    rows = [
        [cell.strip() for cell in line.strip("|").split(" | ")]
        for line in privacy.covered_table().splitlines()
    ]
    return {cells[0]: (cells[1], cells[2]) for cells in rows if cells[0] in METHODS}


@cache
def sums() -> dict[str, str]:
    """Return why a method cannot sum under masks, by method (nothing: it can)."""
    return {row["name"]: row["summary"] for row in secure_sums_rows()}


def travels(own: Described) -> str:
    """Return what a method sends beside what its picture shows, and what can protect its clients."""
    heads = ["step", "blocks that come back", "beside them", "to clients, beside blocks", "the server needs"]
    rows = sent_rows()[own.method]
    clients, samples = covered()[own.method]
    masks = sums()[own.method]
    return table(heads, rows) + (
        "\n*training* is how training went: samples, hits, loss, steps. Every name is explained in "
        "[What is sent beside blocks](../trust/sent.md). Evaluations send "
        "[scores](../trust/sent.md#evaluation), the same with every method.\n\n"
        f"- [Differential privacy](../trust/privacy.md) of whole clients: {clients}; of single samples: {samples}.\n"
        f"- [Sums under masks](../trust/secure_sums.md): {f'no: {masks}' if masks else 'yes'}.\n"
    )


def description(own: Described) -> str:
    """Return what the code says that a method does."""
    return "\n\n".join(text for text in described_method(own.method)[:2] if text) + "\n"


def deviations(own: Described) -> str:
    """Return where a method is not as in its paper, sentence by sentence."""
    text = deviations_of(own)
    sentences = [f"{words[0].upper()}{words[1:]}" for words in clauses(text.partition(":")[2].strip())]
    if sentences[0] == "None.":
        return " ".join(sentences) + "\n"
    return "".join(f"- {sentence}\n" for sentence in sentences)


def deviations_of(own: Described) -> str:
    """Return the part of a description that says it; of a variant that has none, its origin's."""
    if not own.method:
        text = " ".join((inspect.getdoc(ADAPTERS["parallel"]) or "").split())
        return text[DEVIATES.search(text).start() :]  # type: ignore[union-attr]
    for kind in METHODS[own.method].__mro__:
        if issubclass(kind, Method) and "name" in vars(kind) and (found := described_method(kind.name)[2]):
            return (
                found
                if kind.name == own.method
                else f"Deviations: those of [{kind.title}]({_page(kind.name)}.md)."
            )
    raise LookupError(f"the docstring of {own.method} does not say where it deviates from its paper")


def _page(method: str) -> str:
    return next(page for page, own in described().items() if own.method == method)


def clauses(text: str) -> list[str]:
    """Part a text at full stops and semicolons that are in no brackets; each part ends with a full stop."""
    found, depth, begin = [], 0, 0
    for at, sign in enumerate(text):
        depth += (sign in "([") - (sign in ")]")
        ends = sign == ";" or (sign == "." and re.match(r"\. (?=[A-Z`])", text[at:]))
        if ends and not depth:
            found.append(text[begin:at])
            begin = at + 1
    found.append(text[begin:].rstrip("."))
    return [f"{words.strip()}." for words in found if words.strip()]


def measured(own: Described) -> str:
    """Return where a method is measured: studies, trust, exported models."""
    studies = ", ".join(f"`{get(name).name}`" for name in own.studies)
    none = "" if has_figures(own) else " No figures of ours yet: `intarsia papers run NAME`."
    published = f"- [Published experiments](../papers.md#{own.papers}): {studies}.{none}"
    lines = [published] if own.studies else []
    lines += [f"- {words}" for words in _elsewhere(own)]
    return "\n".join(lines) + "\n"


def has_figures(own: Described) -> bool:
    """Return whether a table of the page of published experiments names a method."""
    name = re.compile(rf"(?<![\w+]){re.escape(own.called or own.title)}(?![\w+])", re.IGNORECASE)
    return any(name.search(line) for line in _papers() if re.match("[|] (?!`)", line))


@cache
def _papers() -> list[str]:
    return (ROOT / "docs" / "papers.md").read_text().splitlines()


def _elsewhere(own: Described) -> Iterable[str]:
    pages = {
        "choosing": "Beside other methods on little populations: [which method for my clients](../choosing.md).",
        "evidence": "What held of the papers, and what did not: [evidence](../evidence.md).",
    }
    yield from (words for page, words in pages.items() if (ROOT / "docs" / f"{page}.md").exists())
    cases = [case for case in _record("audit.json")["rows"] if _is_about(case, own)]
    if cases:
        yield f"What it gives away ({len(cases)} cases): [what a block gives away](../trust/audit.md#measured)."
    if own.method in {run["method"] for run in _record("privacy.json")["runs"].values()}:
        yield "Epsilon against accuracy: [privacy](../trust/privacy.md#epsilon-against-accuracy)."
    if any(_is_about(case.partition(" / ")[0], own) for case in _record("fleet_clock.json")["runs"]):
        yield "In virtual hours: [one mixed fleet](../fleet.md#measured-one-mixed-fleet)."
    if own.title in {row["base"] for row in _record("attacks.json")["rows"]}:
        yield "Under attack: [hostile clients](../trust/hostile.md)."
    exported = _record("exports.json")["methods"].get(own.method)
    if exported:
        worst = max(exported[end] for end in (".onnx", ".pt2", ".safetensors"))
        yield f"Exported models are at most {worst:.1e} from the originals ([export](../export.md))."


def _is_about(case: str, own: Described) -> bool:
    words = case.split(", ")
    return words[0] == own.method or (not own.method and own.page in case)


@cache
def _record(name: str) -> Any:
    return json.loads((Path(__file__).parents[1] / name).read_text())
