"""The terminal: what is said, and what went wrong."""

from __future__ import annotations

from rich.console import Console

from intarsia.cli.app import app
from intarsia.cli.data import data
from intarsia.cli.flower import flower, site_command
from intarsia.cli.papers import papers
from intarsia.cli.weights import weights

console = Console()
errors = Console(stderr=True)
app.add_typer(data, name="data")
app.add_typer(flower, name="flower")
app.command("site")(site_command)
app.add_typer(papers, name="papers")
app.add_typer(weights, name="weights")
