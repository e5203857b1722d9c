"""`intarsia data check FILE`: what was seen of own files, on a terminal."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import typer
from rich.markup import escape
from rich.table import Table

from intarsia.cli.terminal import console


def check_files(paths: Sequence[Path], told: dict[str, str], write: Path | None, as_json: bool) -> None:
    """Look at own files, say what was seen, and write a recipe if asked for."""
    from intarsia.core import DataError, write_atomically
    from intarsia.data.looking import look, recipe_for

    if write is not None and write.exists():
        raise DataError(f"{write} is there already: name another file, or take it away")
    found = look(paths, **told)
    if as_json:
        typer.echo(json.dumps(found.to_json(), indent=2))
    else:
        _show(found)
    if found.trouble:
        raise DataError(f"these files cannot be run yet: {found.trouble}")
    if write is not None:
        write_atomically(write, recipe_for(found, write.resolve().parent).encode())
    if not as_json:
        _say(
            f"Recipe: [bold]{escape(str(write))}[/] (intarsia run {escape(str(write))})"
            if write
            else _next(paths)
        )


def _next(paths: Sequence[Path]) -> str:
    names = " ".join(escape(str(path)) for path in paths)
    return f"Next: [bold]intarsia data check {names} --write {escape(paths[0].stem)}.toml[/] writes a recipe."


def _say(text: str) -> None:
    console.print(text, highlight=False, soft_wrap=True)


def _show(found: Any) -> None:
    _say(f"[bold]{escape(', '.join(map(str, found.paths)))}[/]: {found.form}, {found.rows:,} rows")
    if found.columns:
        table = Table()
        for head, side in (("column", "left"), ("role", "left"), ("holds", "left"), ("missing", "right")):
            table.add_column(head, justify=side)  # type: ignore[arg-type]
        for column in found.columns:
            table.add_row(escape(column.name), column.role, escape(_holds(column)), str(column.missing or ""))
        console.print(table)
    if found.population is not None:
        _show_clients(found.population)
    for text in found.roles.unsure:
        _say(f"[yellow]Unsure:[/] {escape(text)}")
    for text in found.findings:
        _say(f"- {escape(text)}")


def _holds(column: Any) -> str:
    if column.kind == "number":
        return f"numbers {column.low:.5g} ... {column.high:.5g}"
    examples = ", ".join(column.examples) + (" ..." if column.distinct > len(column.examples) else "")
    return f"{column.kind}: {examples}" if column.kind != "empty" else "nothing"


def _show_clients(population: Any) -> None:
    from intarsia.data import who_holds_what

    about = who_holds_what(population)
    table = Table()
    for head in ("client", "device", "train", "test", "held"):
        table.add_column(head, justify="right" if head in ("train", "test") else "left")
    for name, client in list(about["clients"].items())[:20]:
        counts = [sum(c) for c in zip(*client["labels"].values(), strict=True)]
        held = ", ".join(f"{about['labels'][i]} {n}" for i, n in enumerate(counts) if n)
        samples = client["samples"]
        table.add_row(
            escape(name), escape(client["device"]), str(samples["train"]), str(samples["test"]), escape(held)
        )
    console.print(table)
    if len(about["clients"]) > 20:
        _say(f"and {len(about['clients']) - 20} clients more")
