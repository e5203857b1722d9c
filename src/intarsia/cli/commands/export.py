"""Commands that take models home: `export`, `predict`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from intarsia.cli.options import command, new_group
from intarsia.cli.terminal import complain, say

if TYPE_CHECKING:
    from intarsia.experiment import Run
    from intarsia.export import Predictions
    from intarsia.flower.site.site_models import SiteModels

PLACE = 1.5
PANEL = "Take home"
group = new_group()

Client = Annotated[str, typer.Option("--client", metavar="NAME", help="Whose model.")]
Whose = Annotated[
    str,
    typer.Option(
        "--client", metavar="NAME", help="Whose model and rows; without it, every row's own client's."
    ),
]
To = Annotated[
    Path,
    typer.Option("--to", help="model.onnx, model.pt2, model.safetensors, or a folder for all of them."),
]
Every = Annotated[
    bool, typer.Option("--all", help="Every client: a folder each, or as {client} in --to says.")
]
Force = Annotated[bool, typer.Option("--force", help="Write over what is there.")]


@command(
    group,
    "export",
    PANEL,
    "intarsia export runs/one --client client-03 --to model.onnx",
    'intarsia export runs/one --all --to "models/{client}.onnx"',
)
def export_command(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder, wherever it lies.")],
    to: To,
    client: Client = "",
    every: Every = False,
    force: Force = False,
) -> None:
    """Write a client's own model as a plain one that runs without Intarsia."""
    from intarsia.experiment import open_run

    write_models(open_run(folder), to, client, every, force)


def write_models(models: Run | SiteModels, to: Path, client: str, every: bool, force: bool) -> None:
    """Write one client's own model, or every client's, and say how far each is from the original."""
    from intarsia.core import SettingsError, some

    if every == bool(client):
        raise SettingsError(f"say whose model: --client NAME, or --all; clients: {some(models.clients)}")
    written = models.export(to, force=force) if every else [models.client(client).export(to, force=force)]
    for one in written:
        say(f"[bold]{escape(str(one.path))}[/]: {one.check}")


@command(
    group,
    "predict",
    PANEL,
    "intarsia predict runs/one --client client-03 new.csv --out predictions.csv",
    "intarsia predict model.onnx new.csv",
)
def predict_command(
    model: Annotated[Path, typer.Argument(metavar="RUN|EXPORT", help="A run folder, or what export wrote.")],
    samples: Annotated[
        Path, typer.Argument(metavar="FILE", help="A table, a folder of images, or an .npz archive with x.")
    ],
    client: Whose = "",
    out: Annotated[Path, typer.Option("--out", help="The .csv file to write.")] = Path("predictions.csv"),
    identity: Annotated[
        str, typer.Option("--id", metavar="COLUMN", help="A column that comes along into the predictions.")
    ] = "",
    force: Force = False,
) -> None:
    """Predict for new samples: raw readings in, labels with probabilities (or numbers) out."""
    found = _predicted(model, client, samples, identity)
    for notice in found.notices:
        complain(notice, "Note")
    if found.unused:
        complain(", ".join(found.unused), "columns that the model does not use")
    found.write(out, force=force)
    say(f"{len(found)} predictions: [bold]{escape(str(out))}[/]")


def _predicted(model: Path, client: str, samples: Path, identity: str) -> Predictions:
    from intarsia.core import RunFolderError
    from intarsia.experiment import open_run
    from intarsia.export import Predictor, is_export

    if not model.exists():
        raise RunFolderError(f"{model} is not there: name a run folder, or what intarsia export wrote")
    if is_export(model):
        return Predictor.open(model, client).predict(samples, identity)
    run = open_run(model)
    if client:
        return run.client(client).predict(samples, identity=identity)
    return run.predict(samples, identity=identity)
