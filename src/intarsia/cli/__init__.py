"""The command line."""

from intarsia.cli.app import main

__all__ = ["main"]
