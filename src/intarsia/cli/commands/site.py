"""`intarsia site`: what runs at a site of a federation on Flower, and what it takes home."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import click
import typer
from typer.core import TyperGroup

from intarsia.cli.commands.export import Client, Every, Force, To, write_models
from intarsia.cli.options import command

PLACE = 6
NAME = "site"
PANEL = "On Flower"
SERVE = "serve"


class _Serving(TyperGroup):
    """A group whose first word may be a site's file: then the site's agent is meant."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Put the command before a file that stands alone."""
        if args and args[0] not in self.commands and not args[0].startswith("-"):
            args = [SERVE, *args]
        return super().parse_args(ctx, args)


group = typer.Typer(
    cls=_Serving,
    no_args_is_help=True,
    help="Be a site of a federation (site SITE.toml), or export its models.",
)
SiteFile = Annotated[Path, typer.Argument(metavar="SITE.toml", help="What is at this site.")]


@command(group, SERVE, None, "intarsia site north.toml")
def site_command(file: SiteFile) -> None:
    """Be a site's agent: keeps data, models and the clients' own blocks; answers its SuperNode."""
    from intarsia.core import harmless
    from intarsia.flower.site.agent_port import serve
    from intarsia.flower.site.site_file import Site

    serve(Site.load(file), lambda text: print(harmless(text), flush=True))


@command(
    group,
    "export",
    None,
    "intarsia site export north.toml --client ann --to ann.onnx",
    'intarsia site export north.toml --all --to "models/{client}.onnx"',
)
def export_command(
    file: SiteFile,
    to: To,
    client: Client = "",
    every: Every = False,
    run: Annotated[str, typer.Option("--run", metavar="ID", help="Which run (default: the last).")] = "",
    force: Force = False,
) -> None:
    """Write the own models of this site's clients, as last evaluated, from its own folder; no server is asked."""
    from intarsia.flower.site.site_file import Site
    from intarsia.flower.site.site_models import SiteModels

    write_models(SiteModels(Site.load(file), run), to, client, every, force)
