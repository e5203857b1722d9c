"""What clients and server agree on before a run."""

from intarsia.setup.setup import Setup, Template

__all__ = ["Setup", "Template"]
