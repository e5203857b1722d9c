"""The terminal: what is said, and what went wrong."""

from __future__ import annotations

import json
import signal
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import typer
from rich.cells import cell_len
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

console = Console()
errors = Console(stderr=True)
Cell = str | Text
FOLDED = 8
"""How narrow a column may become; what needs more makes the table wider than the terminal."""


def say(text: str) -> None:
    """Print a line, with marks, that is wrapped by the terminal alone."""
    console.print(text, highlight=False, soft_wrap=True)


def say_pairs(pairs: Iterable[tuple[str, str]]) -> None:
    """Print a line a pair, with what it is about in bold."""
    for key, value in pairs:
        say(f"[bold]{key}[/]: {escape(value)}")


def say_file(what: str, path: Path) -> None:
    """Name a file that was written."""
    say(f"{what}: [bold]{escape(str(path.resolve()))}[/]")


def say_json(value: Any) -> None:
    """Print plain values as JSON."""
    typer.echo(json.dumps(value, indent=2))


def complain(text: str, kind: str = "Warning", style: str = "yellow") -> None:
    """Say what went wrong, or may have; what others wrote is made harmless."""
    from intarsia.core import harmless

    errors.print(f"[{style}]{escape(kind)}:[/] {escape(harmless(text))}", highlight=False, soft_wrap=True)


def say_table(
    title: str,
    heads: Sequence[str],
    rows: Iterable[Sequence[Cell]],
    *,
    right: Collection[str] = (),
    whole: Collection[str] = (),
    **style: Any,
) -> None:
    """Print a table in which nothing is cut; columns that are `whole` are not folded either, however narrow it is."""
    lines = [list(row) for row in rows]
    table = Table(title=escape(title), **style)
    least = 1
    for number, head in enumerate(heads):
        widest = max([cell_len(head), *(len(line[number]) for line in lines)])
        width = widest if head in whole else min(widest, FOLDED)
        least += width + 3
        side: Literal["right", "left"] = "right" if head in right else "left"
        table.add_column(escape(head), justify=side, overflow="fold", no_wrap=head in whole, min_width=width)
    for line in lines:
        table.add_row(*(escape(cell) if isinstance(cell, str) else cell for cell in line))
    table.width = least if least > console.width else None
    console.print(table, crop=False)


def _terminate(*_: object) -> None:
    """Let SIGTERM do as Ctrl-C does; once, so that saving is not interrupted."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise KeyboardInterrupt


@contextmanager
def interruptible() -> Iterator[None]:
    """Turn Ctrl-C, and SIGTERM, into a sentence that says how to go on."""
    before = signal.signal(signal.SIGTERM, _terminate)
    try:
        yield
    except KeyboardInterrupt as interrupt:
        errors.print(f"\n{escape(str(interrupt)) or 'Stopped.'}", highlight=False, soft_wrap=True)
        terminated = signal.getsignal(signal.SIGTERM) is signal.SIG_IGN
        raise typer.Exit(128 + (signal.SIGTERM if terminated else signal.SIGINT)) from None
    finally:
        signal.signal(signal.SIGTERM, before)
