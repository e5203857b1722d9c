"""Every code block of the documentation is run, in a folder with runs of the names that pages use.

Commands run in this process, Python keeps its names from block to block of a page, TOML is checked as what it is. A block that
cannot run here says why in a comment above it; then it must at least be a command that there is, or Python that parses.
"""

from __future__ import annotations

import ast
import csv
import re
import runpy
import shutil
import tomllib
from collections.abc import Iterator
from contextlib import chdir
from pathlib import Path
from unittest import mock

import click
import pytest
import tomli_w
from sybil import Document, Example, Region
from sybil.evaluators.python import PythonEvaluator
from sybil.parsers.markdown import CodeBlockParser

import intarsia
from intarsia.core import REGISTRIES
from intarsia.experiment import settings as settings_of_runs
from tests.docs import commands, tables
from tests.docs.pages import FENCED, HOME, PAGES, mark_of, name_of

SMALL = {"rounds": 1, "engine": {"name": "debug", "device": "cpu"}}
FEW = {"clients": 8, "cohorts": 2}
MOST_MARKS = 40
"""So many blocks at most are not run here. Think before you raise it: what is not run gets out of date."""
SHELL = ("bash", "sh", "shell")
SHOWN = "console"
"""Commands that are shown, and looked at: not run, and counted with those that say why."""
MADE = {
    "mine": ["quickstart"],
    "alone": ["quickstart", "--set", "method=local"],
    "fleet": ["fleet.toml"],
}
"""Runs that pages speak of without having made them."""
PLAYED = HOME / "docs" / "methods"
"""Commands of these pages are played by the test of their pictures (tests/benchmarks/test_method_pages.py)."""
DONE: set[tuple[Path | str, ...]] = set()
"""What was run already, and where: pages that give the same command share its run."""


def small_recipes() -> dict[str, str]:
    """Return the package's recipes with few clients, rounds and epochs."""
    tables = {name: tomllib.loads(text) for name, text in settings_of_runs.recipes().items()}
    few = {
        name: {"population": {**table["population"], **FEW}, "training": {**table["training"], "epochs": 1}}
        for name, table in tables.items()
    }
    return {name: tomli_w.dumps({**table, **SMALL, **few[name]}) for name, table in tables.items()}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder in which a reader works: a table of a fleet, runs that were made before, small recipes."""
    folder = tmp_path_factory.mktemp("reader")
    small = small_recipes()
    with chdir(folder), mock.patch.object(settings_of_runs, "recipes", return_value=small):
        write_tables(folder)
        commands.run(["intarsia", "data", "check", "fleet.csv", "--write", "fleet.toml"], folder)
        for name, words in MADE.items():
            commands.run(["intarsia", "run", *words, "-q", "--out", f"runs/{name}"], folder)
        yield folder


def write_tables(folder: Path) -> None:
    """Write a fleet's readings, new ones of its trucks without labels, and those of a truck that joins later."""
    fleet = runpy.run_path(str(HOME / "examples" / "fleet.py"))
    fleet["write"](folder / "fleet.csv")
    with (folder / "fleet.csv").open(newline="") as file:
        head, *rows = [row[1:] for row in csv.reader(file)]
    without_labels = [row[: head.index("state")] for row in (head, *rows[:160])]
    for name, table in {"joins.csv": [head, *fleet["readings"](13)], "new.csv": without_labels}.items():
        with (folder / name).open("w", newline="") as file:
            csv.writer(file).writerows(table)


def evaluate_shell(example: Example) -> None:
    """Run the commands of a block, or look at them."""
    looked_at = mark_of(example.document.text, example.start) or Path(example.path).parent == PLAYED
    for words in commands.commands(example.parsed):
        if looked_at:
            commands.look_at(words)
        elif (Path.cwd(), *words) not in DONE:
            commands.run(words, Path.cwd())
            DONE.add((Path.cwd(), *words))


def evaluate_shown(example: Example) -> None:
    """Look at commands that are only shown."""
    for words in commands.commands(example.parsed):
        commands.look_at(words)


class Python(PythonEvaluator):
    """Runs Python with the names of the page; of a block that is not run, only its grammar is looked at."""

    def __call__(self, example: Example) -> None:
        if mark_of(example.document.text, example.start):
            ast.parse(example.parsed)
            return
        for folder in re.findall(r'\bout="(runs/[^"]+)"', example.parsed):
            shutil.rmtree(folder, ignore_errors=True)  # an earlier page's
        super().__call__(example)


def evaluate_toml(example: Example) -> None:
    """Check settings, or what else stands in TOML."""
    if mark_of(example.document.text, example.start):
        tomllib.loads(example.parsed)
    else:
        tables.check(example.parsed)


PARSERS = [
    CodeBlockParser("python", Python()),
    CodeBlockParser("toml", evaluate_toml),
    *(CodeBlockParser(language, evaluate_shell) for language in SHELL),
    CodeBlockParser(SHOWN, evaluate_shown),
]


def untagged(document: Document) -> Iterator[Region]:
    """Yield blocks without a language that begin with a command; others are what commands say."""
    for block in FENCED.finditer(document.text):
        if not block["info"].strip() and block["body"].lstrip().startswith(commands.OURS):
            yield Region(block.start(), block.end(), block["body"], evaluate_shell)


def parsed(page: Path) -> Document:
    """Return a page with its blocks."""
    return Document.parse(str(page), *PARSERS, untagged)


WITH_BLOCKS = [page for page in PAGES if list(parsed(page).examples())]


@pytest.fixture
def _own_registries(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a page registers is gone when the page is done."""
    for registry in REGISTRIES.values():
        for names in ("_box", "_added"):
            monkeypatch.setattr(registry, names, dict(getattr(registry, names)))


@pytest.mark.usefixtures("_own_registries")
@pytest.mark.parametrize("page", WITH_BLOCKS, ids=name_of)
def test_the_blocks_of_a_page_run(page, place):
    document = parsed(page)
    document.namespace["intarsia"] = intarsia
    with chdir(place):
        for example in document.examples():
            example.evaluate()


def test_few_blocks_are_not_run():
    blocks = [
        (document.text, example) for document in map(parsed, WITH_BLOCKS) for example in document.examples()
    ]
    left = [e for text, e in blocks if e.region.evaluator is evaluate_shown or mark_of(text, e.start)]
    assert len(blocks) > 80
    assert len(left) <= MOST_MARKS


def test_every_block_says_what_it_is():
    known = {"", "python", "toml", "text", "html", "json", "csv", SHOWN, *SHELL}
    said = {
        (name_of(page), block["info"].strip())
        for page in PAGES
        for block in FENCED.finditer(page.read_text())
    }
    assert not [(page, info) for page, info in said if info not in known]


def test_a_wrong_block_is_noticed(tmp_path, place):
    for text in (
        "```\nintarsia run --nonsense\n```",
        "```bash\nintarsia run --nonsense\n```",
        "```toml\nmethod = 'nonsense'\n```",
        "```python\n1 / 0\n```",
    ):
        (tmp_path / "page.md").write_text(f"{text}\n")
        (example,) = parsed(tmp_path / "page.md").examples()
        with pytest.raises((AssertionError, click.UsageError, intarsia.IntarsiaError, ZeroDivisionError)):
            example.evaluate()
