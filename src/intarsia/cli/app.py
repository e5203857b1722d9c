"""The command line."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from intarsia._version import __version__
from intarsia.cli.data import DataFolder, data
from intarsia.cli.demo import DEMO_FOLDER, DEMO_METHODS, clear_demo
from intarsia.cli.flower import flower, site_command
from intarsia.cli.papers import papers
from intarsia.cli.shown import show_plan, show_result, show_tuning, write_page, write_pictures, write_profile
from intarsia.cli.terminal import console, errors
from intarsia.cli.weights import show_card, weights

app = typer.Typer(
    help="Modular personalised federated learning.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.add_typer(data, name="data")
app.add_typer(flower, name="flower")
app.command("site")(site_command)
app.add_typer(papers, name="papers")
app.add_typer(weights, name="weights")
Change = Annotated[
    list[str], typer.Option("--set", metavar="a.b=c", help="Change a setting; may be repeated.")
]
Out = Annotated[Path | None, typer.Option("--out", help="Folder of the run (default: a new one in runs/).")]
Engine = Annotated[str | None, typer.Option("--engine", help="debug or local.")]
Workers = Annotated[int | None, typer.Option("--workers", min=0, help="Worker processes (0: one a core).")]
Seed = Annotated[int | None, typer.Option("--seed", min=0, help="Seed of every random draw.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Recipe = Annotated[
    str, typer.Argument(metavar="RECIPE|FILE.toml", help="A recipe's name or a settings file.")
]
Folder = Annotated[Path, typer.Argument(metavar="DIR", help="A run folder.")]


@app.callback(invoke_without_command=True)
def _intarsia(version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    if version:
        typer.echo(f"intarsia {__version__}")
        raise typer.Exit


@app.command("run")
def run_command(
    recipe: Recipe,
    change: Change = [],  # noqa: B006 - typer reads the default
    out: Out = None,
    engine: Engine = None,
    workers: Workers = None,
    seed: Seed = None,
    folder: DataFolder = "",
    profile: Annotated[
        bool, typer.Option("--profile", help="Write where the time went: profile.png and profile.json.")
    ] = False,
) -> None:
    """Run a federation."""
    from intarsia.experiment import run
    from intarsia.report.progress import Progress

    with _interruptible(), Progress(console) as progress:
        done = run(
            recipe, changes=_changes(change, engine, workers, seed, folder), out=out, observer=progress
        )
    show_result([done])
    if profile:
        write_profile(done.path, progress.seconds)
    console.print(f"Run folder: [bold]{escape(str(done.path))}[/]")


@app.command("resume")
def resume_command(
    folder: Folder,
    engine: Engine = None,
    workers: Workers = None,
    device: Annotated[str | None, typer.Option("--device", help="auto, cpu, cuda, ...")] = None,
) -> None:
    """Go on with a run that was stopped; another engine gives the same result."""
    from intarsia.experiment import resume
    from intarsia.report.progress import Progress

    with _interruptible(), Progress(console) as progress:
        chosen = {"name": engine, "workers": workers, "device": device}
        given = {key: value for key, value in chosen.items() if value is not None}
        done = resume(folder, engine=given, observer=progress)
    show_result([done])


@app.command("tune")
def tune_command(
    recipe: Recipe,
    grid: Annotated[
        list[str], typer.Option("--grid", metavar="a.b=x,y", help="Values to try; may be repeated.")
    ] = [],  # noqa: B006
    ranges: Annotated[
        list[str], typer.Option("--range", metavar="a.b=low:high[:log]", help="Numbers to draw from.")
    ] = [],  # noqa: B006
    random: Annotated[
        int | None, typer.Option("--random", min=1, help="Draw this many points instead of trying all.")
    ] = None,
    seeds: Annotated[
        int, typer.Option("--seeds", min=1, help="Seeds for each point; their mean counts.")
    ] = 1,
    by: Annotated[str, typer.Option("--by", help="The round that is scored: last or best.")] = "last",
    change: Change = [],  # noqa: B006
    out: Annotated[
        Path | None, typer.Option("--out", help="Folder of the search; the same one again goes on.")
    ] = None,
    engine: Engine = None,
    workers: Workers = None,
    seed: Seed = None,
    folder: DataFolder = "",
    as_json: AsJson = False,
) -> None:
    """Search over settings of any method: every point, or some by chance; validation data chooses."""
    from intarsia.report.progress import TuningProgress
    from intarsia.tuning import parse_grid, parse_ranges, tune

    with _interruptible(), TuningProgress(errors if as_json else console) as progress:
        found = tune(
            recipe,
            grid=parse_grid(grid),
            ranges=parse_ranges(ranges),
            random=random,
            seeds=seeds,
            by=by,
            changes=_changes(change, engine, workers, seed, folder),
            out=out,
            observer=progress,
        )
    if as_json:
        typer.echo(json.dumps(found.to_json(), indent=2))
    else:
        show_tuning(found)


@app.command("pretrain")
def pretrain_command(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="An architecture (intarsia list models).")],
    out: Annotated[Path, typer.Option("--out", help="The safetensors file to write.")],
    dataset: Annotated[str, typer.Option("--dataset", help="A data set of images.")] = "tinyimagenet32",
    epochs: Annotated[int, typer.Option("--epochs", min=1)] = 10,
    change: Change = [],  # noqa: B006
    seed: Seed = None,
    folder: DataFolder = "",
    device: Annotated[str, typer.Option("--device", help="auto, cpu, cuda, ...")] = "cpu",
    cores: Annotated[int, typer.Option("--cores", min=1, help="More can change the last bits.")] = 1,
    as_json: AsJson = False,
) -> None:
    """Train a base on a public data set and write it with its card; the same command goes on."""
    from intarsia.experiment import Epoch, pretrain
    from intarsia.report import percent

    def tell(e: Epoch) -> None:
        scores = f"loss {e.loss:.3f}, training {percent(e.accuracy)}, validation {percent(e.validation)}"
        line = f"epoch {e.number}/{e.of}: {scores}, {e.seconds:.1f} s"
        (errors if as_json else console).print(line, highlight=False)

    named = [f"model={model}", f"population.dataset={dataset}", f"training.epochs={epochs}"]
    seeded = [] if seed is None else [f"seed={seed}"]
    with _interruptible():
        base = pretrain(
            out,
            changes=[*named, *change, *seeded],
            data_folder=folder,
            device=device,
            cores=cores,
            observer=tell,
        )
    show_card(base, as_json)


@app.command("plan")
def plan_command(
    recipe: Recipe,
    change: Change = [],  # noqa: B006
    seed: Seed = None,
    folder: DataFolder = "",
    as_json: AsJson = False,
) -> None:
    """Show what a run would do: clients, blocks, addresses, parameters and bytes a round."""
    from intarsia.experiment import preview

    plan = preview(recipe, changes=_changes(change, None, None, seed, folder))
    if as_json:
        typer.echo(json.dumps(plan, indent=2))
    else:
        show_plan(plan)


@app.command("compare")
def compare_command(
    folders: Annotated[list[Path], typer.Argument(metavar="DIR...", help="Run folders.")],
    out: Annotated[Path, typer.Option("--out", help="The HTML page to write.")] = Path("compare.html"),
    pictures: Annotated[
        Path | None,
        typer.Option(
            "--pictures", help="Folder for PNG pictures of networks (FedMN) or teachers (pFedClub)."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Compare runs: a table, and one HTML page."""
    from intarsia.core import SettingsError
    from intarsia.experiment import open_run

    if out.is_dir():
        raise SettingsError(
            f"--out: {out} is a folder: name the page to write, for example {out / 'compare.html'}"
        )
    runs = [open_run(path) for path in _finished(folders)]
    if as_json:
        typer.echo(json.dumps([{"folder": str(r.path), **r.summary} for r in runs], indent=2))
        return
    show_result(runs)
    write_page(out, "Comparison", f"{len(runs)} runs", runs)
    if pictures is not None:
        write_pictures(pictures, runs)


@app.command("list")
def list_command(
    what: Annotated[
        str, typer.Argument(metavar="methods|models|adapters|codecs|datasets|populations|partitions|recipes")
    ],
    as_json: AsJson = False,
) -> None:
    """List the methods, models, adapters, codecs, data sets, populations, partitions or recipes there are."""
    from intarsia.cli.catalogue import CATALOGUE
    from intarsia.core import SettingsError, suggest

    if what not in CATALOGUE:
        raise SettingsError(f"there is no list of '{what}'{suggest(what, CATALOGUE)}")
    rows = CATALOGUE[what]()
    if as_json:
        typer.echo(json.dumps(rows, indent=2))
        return
    table = Table(title=what)
    for key in rows[0]:
        table.add_column(key)
    for row in rows:
        table.add_row(*(escape(str(value)) for value in row.values()))
    console.print(table)


@app.command("demo")
def demo_command(
    out: Annotated[Path, typer.Option("--out", help="Folder; an earlier demo is replaced.")] = DEMO_FOLDER,
    seed: Seed = None,
) -> None:
    """Compare Local, FedAvg, FedProx, FedPer and ModFL on real handwritten digits of 40 clients."""
    from intarsia.experiment import run
    from intarsia.methods import METHODS
    from intarsia.report.progress import Progress

    clear_demo(out)
    runs = []
    for method in DEMO_METHODS:
        changes = _changes([f"method={method}", f"name=demo-{method}"], None, None, seed)
        with _interruptible(), Progress(console, METHODS[method].title) as progress:
            runs.append(run("quickstart", changes=changes, out=out / method, observer=progress))
    show_result(runs)
    lead = (
        "40 clients with real handwritten digits, two generations of a sensor (8x8 and 4x4 pixels), five "
        "cohorts that see four labels each. The generations have different input layers, so FedAvg, FedProx "
        "and FedPer run for each generation by itself; ModFL federates the input side by generation and the "
        "output side by cohort, across generations."
    )
    console.print(lead, style="dim")
    write_page(out / "index.html", "Intarsia demo", lead, runs)


def main() -> None:
    """Run the command line; errors that the user can put right are printed without a traceback."""
    from intarsia.core import CheckpointError, IntarsiaError, TuningError, warnings_told
    from intarsia.federation import RunStopped

    try:
        with warnings_told(_caution):
            app(standalone_mode=True)
    except (RunStopped, CheckpointError, TuningError) as error:
        sys.exit(_complain(error, 1))
    except IntarsiaError as error:
        sys.exit(_complain(error, 2))
    except OSError as error:
        sys.exit(_complain(error, 1))


def _terminate(*_: object) -> None:
    """Let SIGTERM do as Ctrl-C does; once, so that saving is not interrupted."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise KeyboardInterrupt


@contextmanager
def _interruptible() -> Iterator[None]:
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


def _complain(error: Exception, code: int) -> int:
    from intarsia.core import harmless

    errors.print(f"[bold red]Error:[/] {escape(harmless(str(error)))}", highlight=False, soft_wrap=True)
    return code


def _caution(text: str) -> None:
    errors.print(f"[yellow]Warning:[/] {escape(text)}", highlight=False, soft_wrap=True)


def _changes(
    change: list[str], engine: str | None, workers: int | None, seed: int | None, folder: str = ""
) -> list[str]:
    data_folder = json.dumps(folder) if folder else None
    named = {"engine.name": engine, "engine.workers": workers, "seed": seed, "data_folder": data_folder}
    return [*change, *(f"{key}={value}" for key, value in named.items() if value is not None)]


def _finished(folders: list[Path]) -> list[Path]:
    """Return the runs that have ended among these folders and those in them; say what is left out."""
    from intarsia.core import RunFolderError

    missing = [str(folder) for folder in folders if not folder.exists()]
    if missing:
        raise RunFolderError(
            f"not there: {', '.join(missing)}; name folders of runs, or folders that hold them"
        )
    runs = []
    for folder in folders:
        found = _runs_in(folder)
        ended = [path for path in found if (path / "summary.json").exists()]
        runs += ended
        for path in found:
            if path not in ended:
                _leave_out(path, "not ended")
        if not found:
            _leave_out(folder, "holds no run")
    if not runs:
        raise RunFolderError(f"{', '.join(map(str, folders))} holds no run that has ended")
    return runs


def _runs_in(folder: Path) -> list[Path]:
    """Return this folder if it is a run's, else those in it that are."""
    candidates = [folder] if (folder / "settings.toml").exists() else sorted(folder.glob("*/"))
    return [path for path in candidates if (path / "settings.toml").exists()]


def _leave_out(path: Path, why: str) -> None:
    errors.print(f"left out, {why}: {escape(str(path))}", style="yellow", soft_wrap=True)
