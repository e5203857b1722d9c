"""Commands of the documentation: run in this process where they are ours, looked at where they are not."""

from __future__ import annotations

import re
import shlex
import shutil
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import chdir
from itertools import pairwise
from pathlib import Path

import click
import typer
from typer.testing import CliRunner

from intarsia.cli.app import app
from tests.docs.pages import HOME

PROJECT = tomllib.loads((HOME / "pyproject.toml").read_text())["project"]
TARGETS = re.findall(r"^([\w-]+):", (HOME / "Makefile").read_text(), re.MULTILINE)
OURS = ("intarsia", "python", "pip", "make", "flwr")
SERVING = ("watch", "cluster")
"""Commands that stay until they are stopped: looked at, and run by tests of their own."""
ELSEWHERE = (
    "python3",
    ".",
    "ruff",
    "mypy",
    "lint-imports",
    "pytest",
    "export",
    "cd",
    "apt-get",
    "ssh",
    "dask",
)
"""Commands of the system and of our tools, which readers type and tests of their own run."""


def commands(block: str) -> Iterator[list[str]]:
    """Yield the commands of a block, word by word, without comments and what is set for them alone."""
    for line in _lines(block):
        words = shlex.split(line.removeprefix("$ "), comments=True)
        while words:
            end = words.index("&&") if "&&" in words else len(words)
            own, words = words[:end], words[end + 1 :]
            while own and re.fullmatch(r"[A-Z_]+=.*", own[0]):
                own = own[1:]
            if own:
                yield own


def _lines(block: str) -> Iterator[str]:
    """Yield lines as the shell reads them: those that go on, and texts over several lines, in one piece."""
    piece = ""
    for line in re.sub(r"\\\n", " ", block).splitlines():
        piece += line
        try:
            shlex.split(piece, comments=True)
        except ValueError:
            piece += "\n"
        else:
            yield piece
            piece = ""
    assert not piece, f"a text is not closed: {piece}"


def look_at(words: Sequence[str]) -> None:
    """Fail if a command is none: an unknown one, an unknown option, a file or target that is not there."""
    first, *rest = words
    match first:
        case "intarsia":
            parse(rest[: rest.index(">")] if ">" in rest else rest)
        case "make":
            unknown = [word for word in rest if "=" not in word and word not in TARGETS]
            assert not unknown, f"the Makefile has no {unknown}"
        case "pip":
            extras = re.findall(r"\[([\w,]+)\]", " ".join(rest))
            known = PROJECT["optional-dependencies"]
            assert all(extra in known for some in extras for extra in some.split(",")), f"extras: {extras}"
        case "python" if rest[0] == "-m":
            module = HOME / rest[1].replace(".", "/")
            assert module.is_dir() or module.with_suffix(".py").exists(), f"there is no {rest[1]}"
        case "python" if rest[0] != "-c":
            assert (HOME / rest[0]).exists(), f"there is no {rest[0]}"
        case "python" | "flwr":
            pass
        case _:
            assert first in ELSEWHERE, f"{first}: what is that? (tests/docs/commands.py)"


def parse(arguments: Sequence[str]) -> None:
    """Fail if the command line has no such command or option."""
    command: click.Command = typer.main.get_command(app)
    words, outer = list(arguments), None
    while isinstance(command, click.Group):
        here = command.make_context(command.name, words, parent=outer)
        words = [*here._protected_args, *here.args]
        if not words:
            return
        _, inner, words = command.resolve_command(here, words)
        assert inner is not None
        command, outer = inner, here
    command.make_context(command.name, words, parent=outer)


def run(words: Sequence[str], place: Path) -> None:
    """Run a command of ours in a folder; what it says goes where the line leads it. Others are looked at."""
    look_at(words)
    if words[0] != "intarsia" or words[1] in SERVING:
        return
    own, target = [*words[1:]], None
    if ">" in own:
        own, target = own[: own.index(">")], own[own.index(">") + 1]
    _make_room(own, place)
    with chdir(place):
        done = CliRunner(env={"COLUMNS": "200"}).invoke(app, [*_globbed(own), *_shortened(own)])
    assert done.exit_code == 0, f"{shlex.join(words)}\n{done.output}\n{done.exception!r}"
    if target:
        (place / target).write_text(done.stdout)


def _globbed(words: Sequence[str]) -> list[str]:
    """Do what the shell does: a pattern stands for the files that fit."""
    return [
        name for word in words for name in (sorted(map(str, Path().glob(word))) if "*" in word else [word])
    ]


def _shortened(words: Sequence[str]) -> list[str]:
    """Return what makes a run short: in rounds, and of the reader's own file (recipes are short already) in all else."""
    if words[0] != "run":
        return []
    return ["--set", "rounds=1", *(["--engine", "debug"] if words[1].endswith(".toml") else [])]


def _make_room(words: Sequence[str], place: Path) -> None:
    """Take away what an earlier page made under the name that a command is about to write."""
    again = {"--to", "--write"} | ({"--out"} if words[0] in ("run", "tune", "predict", "attack") else set())
    for option, value in pairwise(words):
        for old in place.glob(f"{value}*") if option in again else ():
            shutil.rmtree(old) if old.is_dir() else old.unlink()
