"""The command for a client that joins later: `adapt`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from intarsia.cli.commands.export import PANEL, Force
from intarsia.cli.options import command, new_group
from intarsia.cli.terminal import say, say_table

if TYPE_CHECKING:
    from intarsia.experiment.adapting import Adapted

PLACE = 1.6
group = new_group()


@command(
    group,
    "adapt",
    PANEL,
    "intarsia adapt runs/one --data new.csv --to model.onnx",
    "intarsia adapt runs/one --data new.csv --name truck-13 --device gen-1 --epochs 10",
)
def adapt_command(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder, wherever it lies.")],
    data: Annotated[
        Path,
        typer.Option(
            "--data",
            metavar="FILE",
            help="The newcomer's rows with labels: a table, an .npz archive, a folder label/*.png.",
        ),
    ],
    to: Annotated[
        Path | None,
        typer.Option("--to", help="model.onnx, .pt2, .safetensors or a folder (default: NAME-model)."),
    ] = None,
    name: Annotated[
        str, typer.Option("--name", help="The newcomer's name (default: as its table or file says).")
    ] = "",
    device: Annotated[
        str | None, typer.Option("--device", metavar="NAME", help="Its device (default: by its columns).")
    ] = None,
    epochs: Annotated[int, typer.Option("--epochs", min=0, help="Epochs of tuning at home.")] = 5,
    force: Force = False,
) -> None:
    """Give a client that joins later a model from a run's blocks, without a new federation."""
    from intarsia.core import file_name
    from intarsia.experiment import open_run

    found = open_run(folder).adapt(data, name=name, device=device, epochs=epochs)
    written = found.export(to or Path(f"{file_name(found.package.client)}-model"), force=force)
    _say(found)
    say(f"[bold]{escape(str(written.path))}[/]: {written.check}")


def _say(found: Adapted) -> None:
    from intarsia.experiment.adapting import IN_WORDS
    from intarsia.judging.verdict import leading

    rows = {(row["stage"], row["split"]): row for row in found.judged}
    stages = list(dict.fromkeys(row["stage"] for row in found.judged))
    metric, test = leading(found.row()), found.row()
    counts = {split: rows[found.kept, split]["n"] for split in ("validation", "test")}
    heads = ("model", *(f"{metric}, {split} ({n})" for split, n in counts.items()), "95 %")
    say(
        f"[bold]{escape(found.package.client)}[/]: {escape(', '.join(found.blocks.values()))} "
        f"(best of {len(found.tried)} on {counts['validation']} validation samples)"
    )
    lines = [
        (
            IN_WORDS[stage] + (" *" if stage == found.kept else ""),
            *(_number(rows[stage, split]["metrics"][metric]) for split in counts),
            " ... ".join(map(_number, rows[stage, "test"]["interval"].get(metric, ()))),
        )
        for stage in stages
    ]
    usual = [_number(rows[found.kept, split]["usual"][metric]) for split in counts]
    say_table("", heads, [*lines, ("the usual answer", *usual, "")], right=heads[1:])
    say(f"* kept: best on validation samples; {test['n']} samples to test on")


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"
