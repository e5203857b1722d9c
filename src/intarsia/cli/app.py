"""The command line."""

from __future__ import annotations

import importlib
import pkgutil
import sys
from types import ModuleType
from typing import Annotated

import typer

from intarsia._version import __version__
from intarsia.cli import commands
from intarsia.cli.terminal import complain

app = typer.Typer(
    help="Modular personalised federated learning.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback(invoke_without_command=True)
def _intarsia(version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    if version:
        typer.echo(f"intarsia {__version__}")
        raise typer.Exit


def _groups() -> list[ModuleType]:
    """Return the groups of commands there are, in the order of the help."""
    found = pkgutil.iter_modules(commands.__path__, f"{commands.__name__}.")
    return sorted((importlib.import_module(f.name) for f in found), key=lambda module: module.PLACE)


for _module in _groups():
    app.add_typer(_module.group, name=getattr(_module, "NAME", None), rich_help_panel=_module.PANEL)


def main() -> None:
    """Run the command line; errors that the user can put right are printed without a traceback."""
    try:
        app(standalone_mode=True)
    except Exception as error:
        code = _code_of(error)
        if code is None:
            raise
        complain(str(error), "Error", "bold red")
        sys.exit(code)


def _code_of(error: Exception) -> int | None:
    """Return what the process ends with: 2 for what the user can put right, 1 for what came in between."""
    from intarsia.core import CheckpointError, IntarsiaError, TuningError
    from intarsia.federation import RunStopped

    if isinstance(error, RunStopped | CheckpointError | TuningError | OSError):
        return 1
    return 2 if isinstance(error, IntarsiaError) else None
