"""What clients and server agree on before a run."""

from intarsia.setup.setup import NEWCOMER, Setup, Template

__all__ = ["NEWCOMER", "Setup", "Template"]
