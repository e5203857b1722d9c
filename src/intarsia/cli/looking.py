"""`intarsia data check FILE`: what was seen of own files, on a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.markup import escape

from intarsia.cli.terminal import say, say_json, say_table

MOST_CLIENTS = 20
"""So many clients are shown one by one."""


def check_files(paths: Sequence[Path], told: dict[str, str], write: Path | None, as_json: bool) -> None:
    """Look at own files, say what was seen, and write a recipe if asked for."""
    from intarsia.core import DataError, write_atomically
    from intarsia.data.looking import look, recipe_for

    if write is not None and write.exists():
        raise DataError(f"{write} is there already: name another file, or take it away")
    found = look(paths, **told)
    if as_json:
        say_json(found.to_json())
    else:
        _show(found)
    if found.trouble:
        raise DataError(f"these files cannot be run yet: {found.trouble}")
    if write is not None:
        write_atomically(write, recipe_for(found, write.resolve().parent).encode())
    if not as_json:
        say(
            f"Recipe: [bold]{escape(str(write))}[/] (intarsia run {escape(str(write))})"
            if write
            else _next(paths)
        )


def _next(paths: Sequence[Path]) -> str:
    names = " ".join(escape(str(path)) for path in paths)
    return f"Next: [bold]intarsia data check {names} --write {escape(paths[0].stem)}.toml[/] writes a recipe."


def _show(found: Any) -> None:
    say(f"[bold]{escape(', '.join(map(str, found.paths)))}[/]: {found.form}, {found.rows:,} rows")
    if found.columns:
        rows = [(c.name, c.role, _holds(c), str(c.missing or "")) for c in found.columns]
        say_table("Columns", ("column", "role", "holds", "missing"), rows, right=("missing",))
    if found.population is not None:
        _show_clients(found.population)
    for text in found.roles.unsure:
        say(f"[yellow]Unsure:[/] {escape(text)}")
    for text in found.findings:
        say(f"- {escape(text)}")


def _holds(column: Any) -> str:
    if column.kind == "number":
        return f"numbers {column.low:.5g} ... {column.high:.5g}"
    examples = ", ".join(column.examples) + (" ..." if column.distinct > len(column.examples) else "")
    return f"{column.kind}: {examples}" if column.kind != "empty" else "nothing"


def _show_clients(population: Any) -> None:
    from intarsia.data import who_holds_what

    about = who_holds_what(population)
    rows = []
    for name, client in list(about["clients"].items())[:MOST_CLIENTS]:
        counts = [sum(c) for c in zip(*client["labels"].values(), strict=True)]
        held = ", ".join(f"{about['labels'][i]} {n}" for i, n in enumerate(counts) if n)
        rows.append((name, client["device"], *(str(client["samples"][s]) for s in ("train", "test")), held))
    say_table("Clients", ("client", "device", "train", "test", "held"), rows, right=("train", "test"))
    if len(about["clients"]) > MOST_CLIENTS:
        say(f"and {len(about['clients']) - MOST_CLIENTS} clients more")
