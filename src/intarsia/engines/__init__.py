"""Engines carry tasks to clients and updates back."""

from intarsia.engines.dealing import WorkerDied
from intarsia.engines.debug import DebugEngine
from intarsia.engines.engine import Engine, Failure, Job, Reply
from intarsia.engines.local.engine import LocalEngine, cores, shared

__all__ = ["DebugEngine", "Engine", "Failure", "Job", "LocalEngine", "Reply", "WorkerDied", "cores", "shared"]
