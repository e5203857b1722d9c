"""The terminal: what is said, and what went wrong."""

from __future__ import annotations

from rich.console import Console

console = Console()
errors = Console(stderr=True)
