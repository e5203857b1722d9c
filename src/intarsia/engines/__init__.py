"""Engines carry tasks to clients and updates back."""

from intarsia.engines.debug import DebugEngine
from intarsia.engines.engine import Engine, Failure, Job, Reply
from intarsia.engines.local.engine import LocalEngine, cores, shared
from intarsia.engines.local.processes import WorkerDied

__all__ = ["DebugEngine", "Engine", "Failure", "Job", "LocalEngine", "Reply", "WorkerDied", "cores", "shared"]
