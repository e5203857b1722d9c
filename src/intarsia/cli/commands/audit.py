"""`intarsia audit`: what a run gives away."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from intarsia.cli.options import AsJson, Folder, command, new_group

PLACE = 2
PANEL = "Look"
group = new_group()


@command(group, "audit", PANEL, "intarsia audit runs/one", "intarsia audit runs/one --attacks labels --json")
def audit_command(
    folder: Folder,
    attacks: Annotated[
        str, typer.Option("--attacks", help="Which to try, with commas between them.")
    ] = "membership,labels,inversion",
    view: Annotated[
        str,
        typer.Option("--view", help="What the server sees: single updates, or the sum (auto: as it was)."),
    ] = "auto",
    shadows: Annotated[int, typer.Option("--shadows", min=0, help="Shadow runs (0: none).")] = 16,
    work: Annotated[
        Path | None,
        typer.Option(
            "--work", help="Folder for what shadow runs told; an audit that was stopped goes on there."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Try attacks on a run: who was trained on, which labels clients have, what their samples look like."""
    from intarsia.audit import Asked, audit
    from intarsia.cli.audited import show_audit
    from intarsia.cli.terminal import interruptible, say_json
    from intarsia.experiment import open_run

    wanted = [name.strip() for name in attacks.split(",") if name.strip()]
    asked = Asked(attacks=wanted, view=view, shadows=shadows, work=work)  # type: ignore[arg-type]
    run = open_run(folder)
    with interruptible():
        record = audit(run, asked)
    if as_json:
        say_json(record)
    else:
        show_audit(record, run.path)
