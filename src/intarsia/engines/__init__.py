"""Engines carry tasks to clients and updates back."""

from intarsia.engines.client import AT_SITE, KEPT, ClientRuntime, State, state_version
from intarsia.engines.debug import DebugEngine
from intarsia.engines.engine import Engine, Failure, Job, Reply
from intarsia.engines.files import DRAFTS, clear_drafts, make_folder, naming, sync_folder, write_atomically
from intarsia.engines.local import LocalEngine, cores
from intarsia.engines.processes import WorkerDied
from intarsia.engines.setup import NEWCOMER, Setup, Template
from intarsia.engines.store import VERSION, BlockStore

__all__ = [
    "AT_SITE",
    "DRAFTS",
    "KEPT",
    "NEWCOMER",
    "VERSION",
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
    "clear_drafts",
    "cores",
    "make_folder",
    "naming",
    "state_version",
    "sync_folder",
    "write_atomically",
]
