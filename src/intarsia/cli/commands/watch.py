"""`intarsia watch`: runs while they go on, in a browser."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from intarsia.cli.options import command, new_group
from intarsia.cli.terminal import complain, console, say

PLACE = 1
PANEL = "Look"
PORT = 8787
LOOPBACK = "127.0.0.1"
group = new_group()


@command(group, "watch", PANEL, "intarsia watch runs --open", "intarsia watch runs /data/more --port 0")
def watch_command(
    folders: Annotated[
        list[Path], typer.Argument(metavar="DIR...", help="Run folders, or folders that hold them.")
    ],
    port: Annotated[
        int, typer.Option("--port", min=0, max=65535, help="Port to listen at (0: any that is free).")
    ] = PORT,
    host: Annotated[
        str,
        typer.Option("--host", help="Address to listen at; any but this machine's own shows runs to others."),
    ] = LOOPBACK,
    browse: Annotated[bool, typer.Option("--open", help="Open the browser.")] = False,
) -> None:
    """Show runs while they go on: a page that updates by itself, for as many runs as there are."""
    from intarsia.report.live import Watching
    from intarsia.report.live.guard import is_loopback

    shown = Watching(folders, host, port)
    if not is_loopback(host):
        complain(
            f"--host {host}: everyone who reaches this machine can read these runs, without a password and "
            "unencrypted; for yourself alone, leave it out and use an ssh tunnel"
        )
    shown.start()
    say(f"Watching {escape(', '.join(map(str, folders)))}: [bold]{shown.address}[/] (Ctrl-C ends it)")
    console.file.flush()
    try:
        if browse:
            typer.launch(shown.address)
        shown.wait()
    except KeyboardInterrupt:
        pass
    finally:
        shown.close()
