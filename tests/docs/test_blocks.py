"""Every code block of the documentation is run, in a folder with runs of the names that pages use.

Commands run in this process, Python keeps its names from block to block of a page, TOML is checked as what it is. A block that
cannot run here says why in a comment above it; then it must at least be a command that there is, or Python that parses.
"""

from __future__ import annotations

import ast
import runpy
import tomllib
from collections.abc import Iterator
from contextlib import chdir
from pathlib import Path
from unittest import mock

import pytest
import tomli_w
from sybil import Document, Example
from sybil.evaluators.python import PythonEvaluator
from sybil.parsers.markdown import CodeBlockParser

import intarsia
from intarsia.experiment import settings as settings_of_runs
from tests.docs import commands, tables
from tests.docs.pages import DOCS, HOME, PAGES, mark_of, name_of

SMALL = {"rounds": 2, "engine": {"name": "debug", "device": "cpu"}}
FEW = {"clients": 8, "cohorts": 2}
MOST_MARKS = 40
"""So many blocks at most are not run here. Think before you raise it: what is not run gets out of date."""
SHELL = ("bash", "sh", "shell", "console")
MADE = {
    "mine": ["quickstart"],
    "alone": ["quickstart", "--set", "method=local"],
    "fleet": ["fleet.toml", "--set", "rounds=2"],
}
"""Runs that pages speak of without having made them."""


def small_recipes() -> dict[str, str]:
    """Return the package's recipes with few clients and rounds."""
    tables = {name: tomllib.loads(text) for name, text in settings_of_runs.recipes().items()}
    return {
        name: tomli_w.dumps({**table, **SMALL, "population": {**table["population"], **FEW}})
        for name, table in tables.items()
    }


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder in which a reader works: a table of a fleet, runs that were made before, small recipes."""
    folder = tmp_path_factory.mktemp("reader")
    small = small_recipes()
    with chdir(folder), mock.patch.object(settings_of_runs, "recipes", lambda: small):
        write_tables(folder)
        commands.run(["intarsia", "data", "check", "fleet.csv", "--write", "fleet.toml"], folder)
        for name, words in MADE.items():
            commands.run(["intarsia", "run", *words, "-q", "--out", f"runs/{name}"], folder)
        yield folder


def write_tables(folder: Path) -> None:
    """Write a fleet's readings, new ones of its trucks without labels, and those of a truck that joins later."""
    fleet = runpy.run_path(str(HOME / "examples" / "fleet.py"))
    fleet["write"](folder / "fleet.csv")
    head, *rows = (folder / "fleet.csv").read_text().splitlines()
    joins = [",".join(["", *row]) for row in fleet["readings"](13)]
    (folder / "joins.csv").write_text("\n".join([head, *joins]))
    states = head.split(",").index("state")
    new = [",".join(line.split(",")[:states]) for line in (head, *rows[:160])]
    (folder / "new.csv").write_text("\n".join(new))


def evaluate_shell(example: Example) -> None:
    """Run the commands of a block, or look at them."""
    why = mark_of(example.document.text, example.start)
    for words in commands.commands(example.parsed):
        if why:
            commands.look_at(words)
        else:
            commands.run(words, Path.cwd())


class Python(PythonEvaluator):
    """Runs Python with the names of the page; of a block that is not run, only its grammar is looked at."""

    def __call__(self, example: Example) -> None:
        if mark_of(example.document.text, example.start):
            ast.parse(example.parsed)
        else:
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
]


def parsed(page: Path) -> Document:
    """Return a page with its blocks."""
    return Document.parse(str(page), *PARSERS)


WITH_BLOCKS = [page for page in PAGES if list(parsed(page).examples())]


@pytest.mark.parametrize("page", WITH_BLOCKS, ids=name_of)
def test_the_blocks_of_a_page_run(page, place):
    document = parsed(page)
    document.namespace["intarsia"] = intarsia
    with chdir(place):
        for example in document.examples():
            example.evaluate()


def test_few_blocks_are_not_run():
    whys = [mark_of(d.text, e.start) for d in map(parsed, WITH_BLOCKS) for e in d.examples()]
    assert len(whys) > 80
    assert sum(map(bool, whys)) <= MOST_MARKS


def test_every_block_says_what_it_is():
    known = {"python", "toml", "text", "html", "js", "json", *SHELL}
    for page in PAGES:
        fences = [line.strip() for line in page.read_text().splitlines() if line.strip().startswith("```")]
        assert all(fence.removeprefix("```").split(" ")[0] in known for fence in fences[::2]), name_of(page)


def test_a_wrong_block_is_noticed(tmp_path, place):
    for text in ("```bash\nintarsia run --nonsense\n```", "```toml\nmethod = 'nonsense'\n```", "```python\n1 / 0\n```"):
        (tmp_path / "page.md").write_text(f"{text}\n")
        (example,) = parsed(tmp_path / "page.md").examples()
        with pytest.raises(Exception, match=r"no|division"):
            example.evaluate()


def test_documentation_is_there():
    assert DOCS / "start.md" in WITH_BLOCKS
