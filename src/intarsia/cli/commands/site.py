"""`intarsia site`: what runs at a site of a federation on Flower."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from intarsia.cli.options import command, new_group

PLACE = 6
PANEL = "On Flower"
group = new_group()


@command(group, "site", PANEL)
def site_command(
    file: Annotated[Path, typer.Argument(metavar="SITE.toml", help="What is at this site.")],
) -> None:
    """Be a site's agent: keeps data, models and the clients' own blocks; answers its SuperNode."""
    from intarsia.core import harmless
    from intarsia.flower.site.agent_port import serve
    from intarsia.flower.site.site_file import Site

    serve(Site.load(file), lambda text: print(harmless(text), flush=True))
