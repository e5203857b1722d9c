"""Commands that show: `plan`, `compare`, `list`, `explain`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from intarsia.cli.options import (
    AsJson,
    Change,
    DataFolder,
    Quiet,
    Recipe,
    Seed,
    changes_of,
    command,
    new_group,
)
from intarsia.cli.terminal import complain, say, say_json, say_table

PLACE = 1
PANEL = "Look"


group = new_group()


@command(group, "plan", PANEL, "intarsia plan quickstart --set method=modfl")
def plan_command(
    recipe: Recipe,
    change: Change = [],  # noqa: B006 - typer reads the default
    seed: Seed = None,
    folder: DataFolder = "",
    as_json: AsJson = False,
) -> None:
    """Show what a run would do: clients, blocks, addresses, parameters and bytes a round."""
    from intarsia.cli.shown import show_plan
    from intarsia.experiment import preview

    plan = preview(recipe, changes=changes_of(change, seed, folder))
    if as_json:
        say_json(plan)
    else:
        show_plan(plan)


@command(
    group, "compare", PANEL, "intarsia compare runs/*", "intarsia compare runs/a runs/b --pictures pictures"
)
def compare_command(
    folders: Annotated[list[Path], typer.Argument(metavar="DIR...", help="Run folders.")],
    out: Annotated[Path, typer.Option("--out", help="The HTML page to write.")] = Path("compare.html"),
    pictures: Annotated[
        Path | None,
        typer.Option("--pictures", help="Folder for PNG pictures: curves, mosaics, what methods made."),
    ] = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print the table as CSV.")] = False,
    as_latex: Annotated[bool, typer.Option("--latex", help="Print the table as LaTeX.")] = False,
) -> None:
    """Compare runs, over seeds and side by side: a table, and one HTML page."""
    from intarsia.cli.comparing import comparison_text, show_runs
    from intarsia.cli.shown import write_page, write_pictures
    from intarsia.core import SettingsError
    from intarsia.experiment import open_run

    if out.is_dir():
        raise SettingsError(
            f"--out: {out} is a folder: name the page to write, for example {out / 'compare.html'}"
        )
    runs = [open_run(path) for path in _finished(folders)]
    if as_json or as_csv or as_latex:
        typer.echo(comparison_text(runs, "json" if as_json else "csv" if as_csv else "latex"), nl=False)
        return
    show_runs(runs, quiet)
    write_page(out, "Comparison", f"{len(runs)} runs", runs, quiet)
    if pictures is not None:
        write_pictures(pictures, runs, quiet)


@command(group, "list", PANEL, "intarsia list methods")
def list_command(
    what: Annotated[str, typer.Argument(metavar="WHAT", help="methods, models, datasets, recipes, ...")],
    as_json: AsJson = False,
) -> None:
    """List what there is: methods and their parts, models, data sets, populations, partitions, recipes."""
    from intarsia.cli.catalogue import LISTS, rows_of
    from intarsia.core import SettingsError, suggest

    if what not in LISTS:
        raise SettingsError(f"there is no list of '{what}'{suggest(what, LISTS)}")
    rows = rows_of(what)
    if as_json:
        say_json(rows)
    else:
        say_table(what, list(rows[0]), [list(row.values()) for row in rows], whole=("name",))


@command(group, "explain", PANEL, "intarsia explain modfl", "intarsia explain dirichlet")
def explain_command(
    name: Annotated[str, typer.Argument(metavar="NAME", help="As it stands in settings: modfl, int8, mlp.")],
    as_json: AsJson = False,
) -> None:
    """Explain a method, or anything else that settings name: what it is, and its settings."""
    from intarsia.cli.catalogue import explained

    found = explained(name)
    if as_json:
        say_json(found)
        return
    for about in found:
        say(f"[bold]{about['kind']} {about['name']}[/]\n")
        typer.echo(f"{about['text']}\n")
        heads = ("setting", "type", "default", "meaning")
        rows = [[row[head] for head in heads] for row in about["settings"]]
        if rows:
            say_table("", heads, rows, whole=("setting",), show_lines=True)
        else:
            say("It has no settings.\n")


def _finished(folders: list[Path]) -> list[Path]:
    """Return the runs that have ended among these folders and those in them; say what is left out."""
    from intarsia.core import RunFolderError
    from intarsia.experiment import runs_in

    missing = [str(folder) for folder in folders if not folder.exists()]
    if missing:
        raise RunFolderError(
            f"not there: {', '.join(missing)}; name folders of runs, or folders that hold them"
        )
    runs = []
    for folder in folders:
        found = runs_in(folder)
        ended = [path for path in found if (path / "summary.json").exists()]
        runs += ended
        for path in found:
            if path not in ended:
                complain(str(path), "left out, not ended")
        if not found:
            complain(str(folder), "left out, holds no run")
    if not runs:
        raise RunFolderError(f"{', '.join(map(str, folders))} holds no run that has ended")
    return runs
