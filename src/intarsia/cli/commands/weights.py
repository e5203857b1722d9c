"""`intarsia weights ...`: published weights as bases, and what a base is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from intarsia.cli.data import AsJson
from intarsia.cli.terminal import console

if TYPE_CHECKING:
    from intarsia.models import Base

weights = typer.Typer(help="Convert published weights; show what a base is.", no_args_is_help=True)


@weights.command("convert")
def convert_command(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="The architecture: mobilenet_v2.")],
    source: Annotated[Path, typer.Argument(metavar="FILE.npz", help="Weights under TensorFlow's names.")],
    out: Annotated[Path, typer.Option("--out", help="The safetensors file to write.")],
    trained_on: Annotated[
        str, typer.Option("--trained-on", help="What they were trained on, for the card.")
    ] = "",
    as_json: AsJson = False,
) -> None:
    """Write published weights as a base: our names and layouts, with a card."""
    from intarsia.core import SettingsError, write_atomically
    from intarsia.models import CONVERTERS, Base, base_bytes

    if model not in CONVERTERS:
        raise SettingsError(f"there is no conversion to '{model}'; there are: {', '.join(CONVERTERS)}")
    if out.exists():
        raise SettingsError(f"{out} is already there: choose another --out, or remove it")
    tensors, card = CONVERTERS[model](source)
    write_atomically(out, base_bytes(tensors, {**card, "trained_on": trained_on}))
    show_card(Base.read(out), as_json)


@weights.command("show")
def show_command(
    file: Annotated[Path, typer.Argument(metavar="FILE.safetensors", help="A base.")], as_json: AsJson = False
) -> None:
    """Show the card of a base."""
    from intarsia.models import Base

    show_card(Base.read(file), as_json)


def show_card(base: Base, as_json: bool) -> None:
    """Print a base's hash and its card."""
    about = {"file": str(base.path), "sha256": base.sha256, **base.card}
    if as_json:
        typer.echo(json.dumps(about, indent=2))
        return
    for key, value in about.items():
        if key not in ("history", "settings"):
            text = value if isinstance(value, str) else json.dumps(value)
            console.print(f"[bold]{key}[/]: {escape(text) or 'not stated'}", highlight=False, soft_wrap=True)
    if not base.card:
        console.print("The file has no card: it was not written by Intarsia.", soft_wrap=True)
