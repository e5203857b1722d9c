"""Engines carry tasks to clients and updates back."""

from intarsia.engines.client import AT_SITE, KEPT, ClientRuntime, State, state_version
from intarsia.engines.debug import DebugEngine
from intarsia.engines.engine import Engine, Failure, Job, Reply
from intarsia.engines.local import LocalEngine, cores
from intarsia.engines.processes import WorkerDied
from intarsia.engines.setup import NEWCOMER, Setup, Template
from intarsia.engines.store import BlockStore, write_atomically

__all__ = [
    "AT_SITE",
    "KEPT",
    "NEWCOMER",
    "BlockStore",
    "ClientRuntime",
    "DebugEngine",
    "Engine",
    "Failure",
    "Job",
    "LocalEngine",
    "Reply",
    "Setup",
    "State",
    "Template",
    "WorkerDied",
    "cores",
    "state_version",
    "write_atomically",
]
