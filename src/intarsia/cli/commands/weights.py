"""`intarsia weights ...`: published weights as bases, and what a base is."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from intarsia.cli.options import AsJson, command, new_group

PLACE = 3
NAME = "weights"
PANEL = "More"
group = new_group("Convert published weights; show what a base is.")


@command(group, "convert")
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
    from intarsia.cli.shown import show_card
    from intarsia.core import SettingsError, write_atomically
    from intarsia.models import CONVERTERS, Base, base_bytes

    if model not in CONVERTERS:
        raise SettingsError(f"there is no conversion to '{model}'; there are: {', '.join(CONVERTERS)}")
    if out.exists():
        raise SettingsError(f"{out} is already there: choose another --out, or remove it")
    tensors, card = CONVERTERS[model](source)
    write_atomically(out, base_bytes(tensors, {**card, "trained_on": trained_on}))
    show_card(Base.read(out), as_json)


@command(group, "show")
def show_command(
    file: Annotated[Path, typer.Argument(metavar="FILE.safetensors", help="A base.")], as_json: AsJson = False
) -> None:
    """Show the card of a base."""
    from intarsia.cli.shown import show_card
    from intarsia.models import Base

    show_card(Base.read(file), as_json)
