"""Options and arguments that several commands have."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TypeVar

import click
import typer
from typer.core import TyperCommand

from intarsia.cli.terminal import complain

F = TypeVar("F", bound=Callable[..., Any])


def _recipes(begun: str) -> list[str]:
    """Return the recipes' names that begin so, for the shell's completion."""
    folder = Path(__file__).parents[1] / "recipes"
    return sorted(path.stem for path in folder.glob("*.toml") if path.stem.startswith(begun))


Recipe = Annotated[
    str,
    typer.Argument(
        metavar="RECIPE|FILE.toml", help="A recipe's name or a settings file.", autocompletion=_recipes
    ),
]
NamedRecipe = Annotated[str, typer.Option("--recipe", metavar="RECIPE|FILE.toml", autocompletion=_recipes)]
Folder = Annotated[Path, typer.Argument(metavar="DIR", help="A run folder.")]
Change = Annotated[
    list[str], typer.Option("--set", metavar="a.b=c", help="Change a setting; may be repeated.")
]
Out = Annotated[Path | None, typer.Option("--out", help="Folder of the run (default: a new one in runs/).")]
Engine = Annotated[str | None, typer.Option("--engine", help="debug, local or dask.")]
Workers = Annotated[int | None, typer.Option("--workers", min=0, help="Worker processes (0: one a core).")]
Scheduler = Annotated[
    str, typer.Option("--scheduler", metavar="tcp://HOST:PORT", help="Use the workers of this cluster.")
]
Ca = Annotated[
    str, typer.Option("--ca", metavar="FILE", help="For tls://: the authority of both sides' certificates.")
]
Certificate = Annotated[
    str, typer.Option("--certificate", metavar="FILE", help="For tls://: what this side shows.")
]
Key = Annotated[str, typer.Option("--key", metavar="FILE", help="For tls://: that certificate's key.")]
Device = Annotated[str | None, typer.Option("--device", help="auto, cpu, cuda, ...")]
AllowSlow = Annotated[
    bool | None,
    typer.Option(
        "--allow-slow", help="Emulate arithmetic (bf16) that the processor has not.", show_default=False
    ),
]
Seed = Annotated[int | None, typer.Option("--seed", min=0, help="Seed of every random draw.")]
DataFolder = Annotated[str, typer.Option("--data", metavar="DIR", help="Look for data sets here first.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Track = Annotated[
    list[str],
    typer.Option(
        "--track",
        metavar="NAME",
        help="Give the figures to a tracker: tensorboard, mlflow or wandb; may be repeated.",
    ),
]
NoPage = Annotated[bool, typer.Option("--no-page", help="Draw no page.html in the run folder.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but warnings and errors.")]


def changes_of(change: list[str], seed: int | None = None, folder: str = "", **named: Any) -> list[str]:
    """Return changes of settings, with those that have an option of their own (`engine__name="debug"`)."""
    own = {"seed": seed, "data_folder": json.dumps(folder) if folder else None}
    own |= {key.replace("__", "."): value for key, value in named.items()}
    texts = {key: str(v).lower() if isinstance(v, bool) else v for key, v in own.items() if v is not None}
    return [*change, *(f"{key}={value}" for key, value in texts.items())]


class Command(TyperCommand):
    """A command that tells our warnings as sentences."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; only now is anything heavy imported."""
        from intarsia.core import warnings_told

        with warnings_told(complain):
            return super().invoke(ctx)


def command(
    group: typer.Typer, name: str, panel: str | None = None, *examples: str, **more: Any
) -> Callable[[F], F]:
    """Register a function as a command: under a heading of the help, which ends with examples."""
    told = "\n\n".join(("Examples:", *(f"  {line}" for line in examples))) if examples else None
    return group.command(name, cls=Command, rich_help_panel=panel, epilog=told, **more)


def new_group(text: str = "") -> typer.Typer:
    """Return an empty group of commands."""
    return typer.Typer(help=text or None, no_args_is_help=True)
