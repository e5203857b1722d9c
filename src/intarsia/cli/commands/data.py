"""`intarsia data ...`: check, show, get and deal data sets."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from intarsia.cli.options import AsJson, Change, DataFolder, Seed, changes_of, command, new_group
from intarsia.cli.terminal import console, say, say_file, say_json, say_pairs, say_table

PLACE = 2
NAME = "data"
PANEL = "More"
group = new_group("Check, show, get and deal data sets.")

Name = Annotated[str, typer.Argument(metavar="NAME", help="A data set (intarsia list datasets).")]


@command(group, "check", None, "intarsia data check fleet.csv --write fleet.toml", "intarsia data check svhn")
def check_command(
    source: Annotated[
        list[str],
        typer.Argument(metavar="NAME|FILE...", help="A data set, or own files: a file, a folder, several."),
    ],
    write: Annotated[
        Path | None, typer.Option("--write", metavar="FILE.toml", help="Write a recipe.")
    ] = None,
    client: Annotated[str, typer.Option("--client", metavar="COLUMN", help="The column of clients.")] = "",
    target: Annotated[str, typer.Option("--target", metavar="COLUMN", help="The column to predict.")] = "",
    time: Annotated[str, typer.Option("--time", metavar="COLUMN", help="The column of times.")] = "",
    folder: DataFolder = "",
    as_json: AsJson = False,
) -> None:
    """Look at own files and say what is in them; or verify a data set (checksums, then every file is read)."""
    from intarsia.data import DATASETS

    told = {"client": client, "target": target, "time": time}
    if len(source) == 1 and source[0] in DATASETS and not any(told.values()) and write is None:
        _check_dataset(source[0], folder, as_json)
        return
    from intarsia.cli.looking import check_files

    if len(source) == 1 and not Path(source[0]).exists():
        _no_such_source(source[0])
    check_files([Path(name) for name in source], told, write, as_json)


def _no_such_source(name: str) -> None:
    from intarsia.core import DataError, suggest
    from intarsia.data import DATASETS

    raise DataError(f"there is no data set, file or folder '{name}'{suggest(name, DATASETS)}")


def _check_dataset(name: str, folder: str, as_json: bool) -> None:
    from intarsia.data import get, places

    found = get(name).locate(places(folder))
    checked = found.check()
    about = _describe(found.form.read(found.folder))
    report = {
        "name": name,
        "form": found.form.name,
        "folder": str(found.folder),
        "files": len(found.files()),
        "checksums": len(checked),
        **about,
    }
    if as_json:
        say_json(report)
    else:
        say_pairs((key, str(value)) for key, value in report.items())


@command(group, "show")
def show_command(
    name: Name,
    out: Annotated[Path | None, typer.Option("--out", help="The PNG to write (default: NAME.png).")] = None,
    folder: DataFolder = "",
) -> None:
    """Draw a sample sheet (PNG) and print the label histogram."""
    from intarsia.data import get, places
    from intarsia.data.raw import RawData, Recordings
    from intarsia.report.pictures import image_sheet, motion_sheet

    raw = get(name).locate(places(folder)).load()
    path = out or Path(f"{name}.png")
    about = _describe(raw)
    if isinstance(raw, RawData):
        image_sheet(raw, name, path)
    elif isinstance(raw, Recordings):
        motion_sheet(raw, name, path)
    else:
        console.print(escape(raw[:400]), highlight=False)
    if "histogram" in about:
        counts = [(label, f"{count:,}") for label, count in about["histogram"].items()]
        say_table(name, ("label", about["unit"]), counts, right=(about["unit"],))
        say_file("Picture", path)


@command(group, "get")
def get_command(name: Name) -> None:
    """Download a data set from its public address, with a checksum."""
    from rich.progress import BarColumn, DownloadColumn, TextColumn
    from rich.progress import Progress as Bar

    from intarsia.data import get
    from intarsia.data.download import download

    with Bar(TextColumn("{task.description}"), BarColumn(), DownloadColumn(), console=console) as bar:
        tasks: dict[str, Any] = {}

        def progress(file: str, done: int, size: int) -> None:
            if file not in tasks:
                tasks[file] = bar.add_task(file, total=size or None)
            bar.update(tasks[file], completed=done)

        folder = download(get(name), progress)
    say(f"Data: [bold]{escape(str(folder))}[/]")


@command(
    group,
    "partition",
    None,
    "intarsia data partition cifar10 --clients 30 --partition dirichlet --plot who.png",
)
def partition_command(
    source: Annotated[str, typer.Argument(metavar="NAME|RECIPE|FILE.toml", help="A data set or settings.")],
    partition: Annotated[str, typer.Option("--partition", help="How it is dealt (for a data set).")] = "",
    clients: Annotated[int, typer.Option("--clients", min=0, help="Among how many clients.")] = 0,
    change: Change = [],  # noqa: B006 - typer reads the default
    seed: Seed = None,
    plot: Annotated[Path | None, typer.Option("--plot", help="Draw who holds what into this PNG.")] = None,
    folder: DataFolder = "",
    as_json: AsJson = False,
) -> None:
    """Show who would hold what."""
    from intarsia.data import who_holds_what
    from intarsia.experiment import load, population_of, with_plugins

    settings = _settings_of(source)
    dealt = {"population__partition": partition or None, "population__clients": clients or None}
    chosen = load(settings, [*changes_of([], seed, folder, **dealt), *change])
    population = population_of(with_plugins(chosen))
    about = who_holds_what(population)
    if as_json:
        typer.echo(json.dumps({"split": population.split_hash, **about}))
    else:
        _show_partition(about, population.split_hash)
    if plot is not None:
        from intarsia.report.pictures import partition_picture

        partition_picture(about, f"{source}, {len(population)} clients, seed {chosen.seed}", plot)
        if not as_json:
            say_file("Picture", plot)


def _settings_of(source: str) -> Any:
    """Return settings for a data set or the embedded digits; else the recipe or file, if it is there."""
    from intarsia.core import SettingsError, suggest
    from intarsia.data import DATASETS, Digits, Synthetic
    from intarsia.experiment import recipes

    if source in DATASETS:
        kind = {"images": "images", "motion": "motion"}.get(DATASETS[source].kind, "roles")
        return {"population": {"name": kind, "dataset": source}}
    if source in (Digits.name, Synthetic.name):
        return {"population": {"name": source}}
    known = recipes()
    if source not in known and not source.endswith(".toml") and not Path(source).exists():
        names = suggest(source, [*known, *DATASETS, Digits.name, Synthetic.name])
        raise SettingsError(f"there is no data set, recipe or file '{source}'{names}")
    return source


def _show_partition(about: dict[str, Any], split: str) -> None:
    from intarsia.data.recorded import clients_in

    splits = ("train", "validation", "test")
    rows = []
    for name, client in about["clients"].items():
        counts = [sum(c) for c in zip(*client["labels"].values(), strict=True)]
        held = [f"{about['labels'][i]}: {n}" for i, n in enumerate(counts) if n]
        shown = ", ".join(held[:8]) + (f" and {len(held) - 8} more" if len(held) > 8 else "")
        numbers = [str(client["samples"].get(split, "-")) for split in splits]
        rows.append((name, client["device"], client["cohort"], *numbers, shown))
    heads = ("client", "device", "cohort", *splits, "labels")
    of_all = f", {len(rows)} of {clients_in(about):,} clients" if len(rows) < clients_in(about) else ""
    say_table(f"Who holds what (split {split}{of_all})", heads, rows, right=splits)


def _describe(raw: Any) -> dict[str, Any]:
    import numpy as np

    from intarsia.data.raw import RawData, Recordings

    if isinstance(raw, RawData):
        counts = np.bincount(raw.y, minlength=len(raw.labels)).tolist()
        return {
            "samples": len(raw),
            "train": int(raw.train.sum()),
            "shape": list(raw.x.shape[1:]),
            "unit": "samples",
            "histogram": dict(zip(raw.labels, counts, strict=True)),
        }
    if isinstance(raw, Recordings):
        every = np.concatenate([r.y for r in raw.items])
        counts = np.bincount(every[every >= 0], minlength=len(raw.labels)).tolist()
        return {
            "recordings": len(raw.items),
            "subjects": len({r.subject for r in raw.items}),
            "rate": raw.rate,
            "channels": raw.items[0].signal.shape[1],
            "unit": "steps",
            "histogram": dict(zip(raw.labels, counts, strict=True)),
        }
    return {"characters": len(raw)}
