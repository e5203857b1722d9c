"""Commands that train: `run`, `resume`, `tune`, `pretrain`, `demo`."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from intarsia.cli.options import (
    AllowSlow,
    AsJson,
    Ca,
    Certificate,
    Change,
    DataFolder,
    Device,
    Engine,
    Folder,
    Key,
    NoPage,
    Out,
    Quiet,
    Recipe,
    Scheduler,
    Seed,
    Track,
    Workers,
    changes_of,
    command,
    new_group,
)
from intarsia.cli.terminal import console, errors, interruptible, say, say_file, say_json

if TYPE_CHECKING:
    from intarsia.experiment import Run
    from intarsia.federation import Observer

PLACE = 0
PANEL = "Train"
DEMO_FOLDER = Path("runs/demo")
DEMO_MARK = ".intarsia-demo"
DEMO_METHODS = ("local", "fedavg", "fedprox", "fedper", "modfl")
DEMO_LEAD = (
    "40 clients with real handwritten digits, two generations of a sensor (8x8 and 4x4 pixels), five "
    "cohorts that see four labels each. The generations have different input layers, so FedAvg, FedProx "
    "and FedPer run for each generation by itself; ModFL federates the input side by generation and the "
    "output side by cohort, across generations."
)


group = new_group()


@command(
    group,
    "run",
    PANEL,
    "intarsia run quickstart",
    "intarsia run quickstart --track tensorboard",
    "intarsia run quickstart --set method=modfl --set training.lr=0.1 --seed 3 --out runs/mine",
)
def run_command(
    recipe: Recipe,
    change: Change = [],  # noqa: B006 - typer reads the default
    out: Out = None,
    engine: Engine = None,
    workers: Workers = None,
    allow_slow: AllowSlow = None,
    scheduler: Scheduler = "",
    ca: Ca = "",
    certificate: Certificate = "",
    key: Key = "",
    seed: Seed = None,
    folder: DataFolder = "",
    profile: Annotated[
        bool, typer.Option("--profile", help="Write where the time went: profile.png and profile.json.")
    ] = False,
    seeds: Annotated[
        int | None, typer.Option("--seeds", min=1, help="Run with so many seeds; the same --out goes on.")
    ] = None,
    track: Track = [],  # noqa: B006
    no_page: NoPage = False,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Run a federation."""
    from intarsia.cli.shown import write_profile
    from intarsia.experiment import fresh_folder, load, run

    asked = {**_engine(engine, workers, scheduler, ca, certificate, key), "allow_slow": allow_slow}
    changes = changes_of(change, seed, folder, **{f"engine__{key}": value for key, value in asked.items()})
    path = out or fresh_folder(Path("runs"), load(recipe, changes).name)
    if seeds is not None:
        _run_seeds(recipe, changes, path, seeds, track, no_page, quiet, as_json)
        return
    done, seconds = _watched(
        lambda told: run(recipe, changes=changes, out=path, observer=told, track=track),
        path,
        no_page,
        quiet,
        as_json,
    )
    if profile:
        picture = write_profile(done.path, seconds)
        if not (quiet or as_json):
            say(f"Where the time went: {picture}")


def _run_seeds(
    recipe: str,
    changes: list[str],
    path: Path,
    seeds: int,
    track: list[str],
    no_page: bool,
    quiet: bool,
    as_json: bool,
) -> None:
    from intarsia.cli.comparing import show_comparison
    from intarsia.cli.shown import complain_of, show_result, show_verdict
    from intarsia.experiment import run
    from intarsia.experiment.progress import Progress
    from intarsia.report.live import draw_page

    with interruptible(), Progress(_told_where(quiet, as_json), folder=path) as progress:
        found = run(recipe, changes=changes, out=path, observer=progress, track=track, seeds=seeds)
    for own in [] if no_page else found.runs:
        draw_page(own.path)
    if as_json:
        say_json({"folder": str(found.path), **found.summary})
    elif not quiet:
        show_result(list(found.runs))
        show_comparison(list(found.runs))
        show_verdict(found.runs)
    complain_of(found.runs)


@command(group, "resume", PANEL, "intarsia resume runs/mine", "intarsia resume runs/mine --rounds 300")
def resume_command(
    folder: Folder,
    rounds: Annotated[
        int | None, typer.Option("--rounds", min=1, help="Go on to this round, past the run's end too.")
    ] = None,
    engine: Engine = None,
    workers: Workers = None,
    allow_slow: AllowSlow = None,
    scheduler: Scheduler = "",
    ca: Ca = "",
    certificate: Certificate = "",
    key: Key = "",
    device: Device = None,
    track: Track = [],  # noqa: B006
    no_page: NoPage = False,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Go on with a run that was stopped, or past its end; another engine gives the same result."""
    from intarsia.experiment import resume

    where = _engine(engine, workers, scheduler, ca, certificate, key)
    chosen = {**where, "device": device, "allow_slow": allow_slow}
    given = {key: value for key, value in chosen.items() if value is not None}
    _watched(
        lambda told: resume(folder, rounds=rounds, engine=given, observer=told, track=track),
        folder,
        no_page,
        quiet,
        as_json,
    )


def _engine(
    name: str | None, workers: int | None, scheduler: str, ca: str, certificate: str, key: str
) -> dict[str, str | int | None]:
    """Return the settings of an engine that options ask for: a scheduler's is `dask`."""
    known = name or ("dask" if scheduler else None)
    given = {"scheduler": scheduler, "ca": ca, "certificate": certificate, "key": key}
    return {"name": known, "workers": workers, **{option: text or None for option, text in given.items()}}


def _watched(
    play: Callable[[Observer], Run], path: Path, no_page: bool, quiet: bool, as_json: bool
) -> tuple[Run, dict[int, dict[str, float]]]:
    """Play a run, show how it goes and what came of it; return it and where its time went."""
    from intarsia.cli.shown import complain_of, show_result, show_verdict
    from intarsia.experiment.progress import Progress
    from intarsia.report.live import PAGE, PageFile

    with (
        interruptible(),
        Progress(_told_where(quiet, as_json), folder=path) as progress,
        PageFile(path, progress, draws=not no_page) as told,
    ):
        done = play(told)
    if as_json:
        say_json({"folder": str(done.path), **done.summary})
    elif not quiet:
        show_result([done])
        show_verdict([done])
        if (done.path / PAGE).exists():
            say_file("Page", done.path / PAGE)
    complain_of([done])
    return done, progress.seconds


def _told_where(quiet: bool, as_json: bool) -> Console:
    return Console(quiet=True) if quiet else errors if as_json else console


Grid = Annotated[list[str], typer.Option("--grid", metavar="a.b=x,y", help="Values to try; may be repeated.")]
Ranges = Annotated[
    list[str], typer.Option("--range", metavar="a.b=low:high[:log]", help="Numbers to draw from.")
]
Points = Annotated[
    int | None, typer.Option("--random", min=1, help="Draw this many points instead of trying all.")
]


@command(group, "tune", PANEL, "intarsia tune quickstart --grid training.lr=0.01,0.1 --seeds 2")
def tune_command(
    recipe: Recipe,
    grid: Grid = [],  # noqa: B006
    ranges: Ranges = [],  # noqa: B006
    random: Points = None,
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
    allow_slow: AllowSlow = None,
    scheduler: Scheduler = "",
    ca: Ca = "",
    certificate: Certificate = "",
    key: Key = "",
    seed: Seed = None,
    folder: DataFolder = "",
    as_json: AsJson = False,
) -> None:
    """Search over settings of any method: every point, or some by chance; validation data chooses."""
    from intarsia.cli.shown import show_tuning
    from intarsia.tuning import parse_grid, parse_ranges, tune
    from intarsia.tuning.progress import TuningProgress

    asked = {**_engine(engine, workers, "", ca, certificate, key), "allow_slow": allow_slow}
    where = {f"engine__{setting}": value for setting, value in asked.items()}
    with interruptible(), TuningProgress(errors if as_json else console) as progress:
        found = tune(
            recipe,
            grid=parse_grid(grid),
            ranges=parse_ranges(ranges),
            random=random,
            seeds=seeds,
            by=by,
            changes=changes_of(change, seed, folder, **where),
            out=out,
            observer=progress,
            scheduler=scheduler,
        )
    if as_json:
        say_json(found.to_json())
    else:
        show_tuning(found)


@command(group, "pretrain", PANEL, "intarsia pretrain resnet --dataset cifar100 --out base.safetensors")
def pretrain_command(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="An architecture (intarsia list models).")],
    out: Annotated[Path, typer.Option("--out", help="The safetensors file to write.")],
    dataset: Annotated[str, typer.Option("--dataset", help="A data set of images.")] = "tinyimagenet32",
    epochs: Annotated[int, typer.Option("--epochs", min=1)] = 10,
    change: Change = [],  # noqa: B006
    seed: Seed = None,
    folder: DataFolder = "",
    device: Device = "cpu",
    cores: Annotated[int, typer.Option("--cores", min=1, help="More can change the last bits.")] = 1,
    as_json: AsJson = False,
) -> None:
    """Train a base on a public data set and write it with its card; the same command goes on."""
    from intarsia.cli.shown import show_card
    from intarsia.core.text import percent
    from intarsia.experiment import Epoch, pretrain

    def tell(e: Epoch) -> None:
        scores = f"loss {e.loss:.3f}, training {percent(e.accuracy)}, validation {percent(e.validation)}"
        line = f"epoch {e.number}/{e.of}: {scores}, {e.seconds:.1f} s"
        (errors if as_json else console).print(line, highlight=False)

    named = [f"model={model}", f"population.dataset={dataset}", f"training.epochs={epochs}"]
    changes = changes_of([*named, *change], seed)
    with interruptible():
        base = pretrain(
            out, changes=changes, data_folder=folder, device=device or "cpu", cores=cores, observer=tell
        )
    show_card(base, as_json)


@command(group, "demo", PANEL)
def demo_command(
    out: Annotated[Path, typer.Option("--out", help="Folder; an earlier demo is replaced.")] = DEMO_FOLDER,
    seed: Seed = None,
) -> None:
    """Compare Local, FedAvg, FedProx, FedPer and ModFL on real handwritten digits of 40 clients."""
    from intarsia.cli.shown import complain_of_lost, show_result, write_page
    from intarsia.experiment import run
    from intarsia.experiment.progress import Progress
    from intarsia.methods import METHODS

    _clear_demo(out)
    runs = []
    for method in DEMO_METHODS:
        changes = changes_of([f"method={method}", f"name=demo-{method}"], seed)
        with interruptible(), Progress(console, METHODS[method].title) as progress:
            runs.append(run("quickstart", changes=changes, out=out / method, observer=progress))
    show_result(runs)
    complain_of_lost(runs)
    console.print(DEMO_LEAD, style="dim")
    write_page(out / "index.html", "Intarsia demo", DEMO_LEAD, runs)


def _clear_demo(out: Path) -> None:
    """Remove what an earlier demonstration left."""
    from intarsia.core import RunFolderError

    if out.exists() and any(out.iterdir()):
        if not (out / DEMO_MARK).exists():
            raise RunFolderError(f"{out} is used, and not by a demo: choose another folder with --out")
        shutil.rmtree(out)
    out.mkdir(parents=True, exist_ok=True)
    (out / DEMO_MARK).touch()
