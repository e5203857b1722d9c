"""The command line."""

from __future__ import annotations

import json
import shutil
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from intarsia._version import __version__
from intarsia.cli.data import DataFolder, data
from intarsia.cli.flower import flower, site_command
from intarsia.cli.papers import papers
from intarsia.cli.weights import show_card, weights

if TYPE_CHECKING:
    from intarsia.experiment import Run
    from intarsia.report import RunView
    from intarsia.tuning import Tuning

app = typer.Typer(
    help="Modular personalised federated learning.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
console = Console()
errors = Console(stderr=True)
app.add_typer(data, name="data")
app.add_typer(flower, name="flower")
app.command("site")(site_command)
app.add_typer(papers, name="papers")
app.add_typer(weights, name="weights")

DEMO_FOLDER = Path("runs/demo")
DEMO_MARK = ".intarsia-demo"
DEMO_METHODS = ("local", "fedavg", "fedprox", "fedper", "modfl")

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
    _show_result([done])
    if profile:
        _write_profile(done.path, progress.seconds)
    console.print(f"Run folder: [bold]{escape(str(done.path))}[/]")


def _write_profile(folder: Path, rounds: dict[int, dict[str, float]]) -> None:
    from intarsia.federation import STAGES
    from intarsia.report.pictures import profile

    (folder / "profile.json").write_text(json.dumps(rounds, indent=1))
    profile(rounds, STAGES, folder / "profile.png")
    console.print(f"Where the time went: {escape(str(folder / 'profile.png'))}")


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
    _show_result([done])


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
        _show_tuning(found)


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
        _show_plan(plan)


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
    _show_result(runs)
    _write_page(out, "Comparison", f"{len(runs)} runs", runs)
    if pictures is not None:
        _write_pictures(pictures, runs)


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

    _clear_demo(out)
    runs = []
    for method in DEMO_METHODS:
        changes = _changes([f"method={method}", f"name=demo-{method}"], None, None, seed)
        with _interruptible(), Progress(console, METHODS[method].title) as progress:
            runs.append(run("quickstart", changes=changes, out=out / method, observer=progress))
    _show_result(runs)
    lead = (
        "40 clients with real handwritten digits, two generations of a sensor (8x8 and 4x4 pixels), five "
        "cohorts that see four labels each. The generations have different input layers, so FedAvg, FedProx "
        "and FedPer run for each generation by itself; ModFL federates the input side by generation and the "
        "output side by cohort, across generations."
    )
    console.print(lead, style="dim")
    _write_page(out / "index.html", "Intarsia demo", lead, runs)


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
    from intarsia.core import plain

    errors.print(f"[bold red]Error:[/] {escape(plain(str(error)))}", highlight=False, soft_wrap=True)
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


def _show_result(runs: list[Run]) -> None:
    from intarsia.report import name_apart, percent, size, view

    table = Table(title="Test accuracy of each client's own model; training bytes sent")
    for head in ("method", "mean", "weighted", "p10", "worst", "loss", "sent", "seconds"):
        table.add_column(head, justify="left" if head == "method" else "right")
    views = name_apart([view(run) for run in runs], runs)
    for shown in views:
        accuracy = shown.summary["accuracy"]
        note = f" [dim]({escape(shown.note)})[/]" if shown.note else ""
        cells = [percent(accuracy.get(key)) for key in ("mean", "weighted", "p10", "worst")]
        loss = shown.summary["loss"].get("mean")
        cells.append("-" if loss is None else f"{loss:.3f}")
        seconds = f"{shown.summary['seconds']['total']:.1f}"
        table.add_row(escape(shown.label) + note, *cells, size(shown.sent), seconds)
    console.print(table)
    for shown, run in zip(views, runs, strict=True):
        if failed := shown.summary.get("failed"):
            where = escape(str(run.path / "events.jsonl"))
            errors.print(
                f"{escape(shown.label)}: {failed} tasks of clients failed, see {where}", style="yellow"
            )
    _show_tasks(views)


def _show_tasks(views: Sequence[RunView]) -> None:
    from intarsia.report import percent

    if not any(shown.tasks for shown in views):
        return
    table = Table(title="By task")
    for head in ("method", "task", "clients", "accuracy", "loss"):
        table.add_column(head, justify="left" if head in ("method", "task") else "right")
    for shown in views:
        for task, own in shown.tasks.items():
            loss = own["loss"].get("mean")
            scores = (percent(own["accuracy"].get("mean")), "-" if loss is None else f"{loss:.4f}")
            table.add_row(escape(shown.label), escape(task), str(own["clients"]), *scores)
    console.print(table)


def _show_tuning(found: Tuning) -> None:
    from intarsia.report import mean_and_std
    from intarsia.tuning import text_of

    table = Table(title=f"Validation {found.measure} ({found.by} round)")
    for head in ("", "trial", *found.best.point, found.measure):
        table.add_column(head, justify="right" if head in ("trial", found.measure) else "left")
    for trial in found.ranked:
        mark = "best" if trial is found.best else ""
        values = [escape(text_of(value)) for value in trial.point.values()]
        score = "failed" if trial.reason else mean_and_std(trial.mean, trial.std, found.measure)
        style = "bold green" if mark else "dim" if trial.reason else None
        table.add_row(mark, str(trial.number), *values, score, style=style)
    console.print(table)
    for warning in found.warnings:
        console.print(f"[yellow]Warning:[/] {escape(warning)}", highlight=False, soft_wrap=True)
    best = escape(str(found.path / "best.toml"))
    console.print(f"Best settings: [bold]{best}[/] (intarsia run {best})", highlight=False, soft_wrap=True)


def _show_plan(plan: dict[str, Any]) -> None:
    from intarsia.models import base_in_words
    from intarsia.report import size

    base = base_in_words(plan["base"])
    adds = f", {base}" if base else ""
    table = Table(title=f"{plan['name']}: {plan['method']}, {plan['rounds']} rounds{escape(adds)}")
    for head in ("clients", "device", "model", "block", "address", "parameters", "down", "up"):
        table.add_column(head, justify="right" if head in ("clients", "parameters", "down", "up") else "left")
    kinds: dict[tuple[Any, ...], int] = {}
    for client in plan["clients"]:
        for b in client["blocks"]:
            key = (
                client["device"],
                client["model"],
                b["block"],
                b["address"],
                b["parameters"],
                b["down"],
                b["up"],
            )
            kinds[key] = kinds.get(key, 0) + 1
    for (device, model, block, address, parameters, down, up), count in kinds.items():
        table.add_row(
            str(count), device, model or "-", block, address, f"{parameters:,}", size(down), size(up)
        )
    console.print(table)
    for key, points in plan["cut_points"].items():
        cuts = ", ".join(f"{p['part']} ({size(p['before'])} | {size(p['from'])})" for p in points)
        console.print(
            f"Cut points of model {escape(key)}: {escape(cuts) or 'none'}", highlight=False, soft_wrap=True
        )
    a_round = plan["bytes_a_round"]
    console.print(
        f"{plan['clients_a_round']} of {len(plan['clients'])} clients a round; the first round sends "
        f"{size(a_round['down'])} down and {size(a_round['up'])} up (tensor bytes)."
    )


def _write_page(path: Path, title: str, lead: str, runs: list[Run]) -> None:
    from intarsia.core import write_atomically
    from intarsia.report import name_apart, page, view

    views = name_apart([view(run) for run in runs], runs)
    write_atomically(path, page(title, lead, views).encode())
    console.print(f"Page: [bold]{escape(str(path.resolve()))}[/]", soft_wrap=True)


def _write_pictures(folder: Path, runs: list[Run]) -> None:
    from intarsia.report import decision_pictures, name_apart, teacher_pictures, view

    drawn = 0
    for shown in name_apart([view(run) for run in runs], runs):
        paths: list[Path] = []
        if shown.decisions is not None:
            paths += decision_pictures(shown.decisions, shown.label, folder)
        if shown.reassembly is not None:
            paths += teacher_pictures(shown.reassembly, shown.label, folder)
        for path in paths:
            console.print(f"Picture: [bold]{escape(str(path.resolve()))}[/]", soft_wrap=True)
        drawn += len(paths)
    if not drawn:
        errors.print(
            "no pictures: there are some of FedMN's networks and pFedClub's teachers alone", style="yellow"
        )


def _clear_demo(out: Path) -> None:
    from intarsia.core import RunFolderError

    if out.exists() and any(out.iterdir()):
        if not (out / DEMO_MARK).exists():
            raise RunFolderError(f"{out} is used, and not by a demo: choose another folder with --out")
        shutil.rmtree(out)
    out.mkdir(parents=True, exist_ok=True)
    (out / DEMO_MARK).touch()
