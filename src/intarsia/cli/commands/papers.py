"""`intarsia papers ...`: the published experiments, run again."""

from __future__ import annotations

import functools
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from intarsia.cli.options import AsJson, Ca, Certificate, DataFolder, Key, Scheduler, command, new_group
from intarsia.cli.terminal import console, say, say_file, say_json, say_table

if TYPE_CHECKING:
    from intarsia.papers import Results, Study

PLACE = 4
NAME = "papers"
PANEL = "More"
group = new_group("Run published experiments again, beside their figures.")
FOLDER = Path("runs/papers")

Name = Annotated[str, typer.Argument(metavar="NAME", help="A study (intarsia papers list).")]
ScaleName = Annotated[str, typer.Option("--scale", help="How much of it is run: small, medium, paper, ...")]
ScaleChange = Annotated[
    list[str],
    typer.Option("--set", metavar="a=b", help="Change the scale: rounds=50, clients=36; repeatable."),
]


@command(group, "list")
def list_command(as_json: AsJson = False) -> None:
    """List the published experiments, with their scales."""
    from intarsia.papers import STUDIES

    rows = [{"name": s.name, "scales": ", ".join(s.scales), "summary": s.title} for s in STUDIES.values()]
    if as_json:
        say_json(rows)
    else:
        say_table("papers", list(rows[0]), [list(row.values()) for row in rows], whole=("name",))


@command(group, "show", None, 'intarsia papers show modfl-table1 --run "ModFL P=3" > modfl.toml')
def show_command(
    name: Name,
    scale: ScaleName = "small",
    change: ScaleChange = [],  # noqa: B006 - typer reads the default
    run: Annotated[str, typer.Option("--run", help="Print this run's settings as TOML.")] = "",
) -> None:
    """Show the scale and the runs of a study; with --run, settings that `intarsia run` takes."""
    from intarsia.core import SettingsError, suggest
    from intarsia.experiment import load
    from intarsia.papers import get

    study = get(name)
    words, chosen = study.scale(scale, change)
    runs = {planned.name: planned for planned in study.runs(chosen, 0)}
    if run:
        if run not in runs:
            raise SettingsError(f"study '{name}' has no run '{run}'{suggest(run, runs)}")
        typer.echo(load({"name": study.name, **runs[run].settings}).to_toml())
        return
    say(f"[bold]{escape(study.title)}[/]\nScale {escape(words)}")
    for each in runs:
        say(f"  {escape(each)}")


@command(group, "run", None, "intarsia papers run modfl-table1 --scale medium --seeds 3")
def run_command(
    name: Name,
    scale: ScaleName = "small",
    seeds: Annotated[int | None, typer.Option("--seeds", min=1, help="How many seeds.")] = None,
    first_seed: Annotated[int, typer.Option("--first-seed", min=0, help="The first of the seeds.")] = 0,
    out: Annotated[Path | None, typer.Option("--out", help=f"Folder (default: {FOLDER}/NAME-SCALE).")] = None,
    change: ScaleChange = [],  # noqa: B006
    record: Annotated[
        Path | None, typer.Option("--record", help="Also write what every run gave into this file.")
    ] = None,
    workers: Annotated[int, typer.Option("--workers", min=0, help="Worker processes (0: one a core).")] = 0,
    scheduler: Scheduler = "",
    ca: Ca = "",
    certificate: Certificate = "",
    key: Key = "",
    folder: DataFolder = "",
) -> None:
    """Run a study and write its table, paper beside ours; the same command goes on where it was stopped.

    Without --out, the runs lie in one folder for all studies, so that a figure takes those of its table.
    """
    from intarsia.core import DataError
    from intarsia.data import places
    from intarsia.experiment.progress import Progress
    from intarsia.papers import carry_out, get

    study = get(name)
    words, chosen = study.scale(scale, change)
    places(folder)
    place = out or FOLDER / f"{name}-{scale}"
    runs = place / "runs" if out else FOLDER / "runs"
    settings = {"data_folder": folder, "engine": {"workers": workers}}
    say(f"[bold]{escape(study.title)}[/]\nScale {escape(words)}")
    try:
        asked = (study, words, chosen, seeds or chosen.seeds, place, runs)
        how: dict[str, Any] = {"settings": settings, "observer_of": functools.partial(Progress, console)}
        how |= {"scheduler": scheduler, "tls": {"ca": ca, "certificate": certificate, "key": key}}
        typed = _typed(name, scale, seeds or chosen.seeds, first_seed, change)
        results = carry_out(*asked, first_seed=first_seed, command=typed, **how)
    except KeyboardInterrupt:
        console.print("Stopped. The same command goes on.")
        raise typer.Exit(130) from None
    _show(study, results)
    _write(results, place, record)
    if results.left_out and not results.readings:
        raise DataError(f"no run of '{name}' could be done: {next(iter(results.left_out.values()))}")


def _write(results: Results, place: Path, record: Path | None) -> None:
    """Write the record, if it is asked for, and the report."""
    from intarsia.papers.study_page import write_report

    if record is not None:
        results.record.write(record)
        say_file("Record", record)
    say_file("Report", write_report(results, place))


def _typed(name: str, scale: str, seeds: int, first: int, changes: list[str]) -> str:
    """Return the command that gives the same figures."""
    told = ["intarsia", "papers", "run", name, "--scale", scale, "--seeds", str(seeds)]
    told += ["--first-seed", str(first)] if first else []
    return shlex.join([*told, *(word for change in changes for word in ("--set", change))])


def _show(study: Study, results: Results) -> None:
    from intarsia.papers.study_page import number, spread

    heads = (" ", study.columns, "paper", "ours", "seeds")
    rows = [(c.row, c.column, number(c.paper), spread(c), str(c.seeds)) for c in results.cells()]
    caption = escape(f"{study.values}; scale {results.scale}")
    say_table(study.title, heads, rows, right=heads[1:], caption=caption)
    for run, reason in results.left_out.items():
        say(f"[yellow]left out[/] {escape(run)}: {escape(reason)}")
