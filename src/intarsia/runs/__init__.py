"""The run folder."""

from intarsia.runs.checkpoints import Named
from intarsia.runs.folder import SUMMARY, RunFolder
from intarsia.runs.journal import Journals
from intarsia.runs.places import is_free, is_locked, lock
from intarsia.runs.settings_text import ROUNDS, SETTINGS
from intarsia.runs.state import ClientRecord, Flight, Records, RunState
from intarsia.runs.tables import TABLES
from intarsia.runs.versions import note_arithmetic, read_versions

__all__ = [
    "ROUNDS",
    "SETTINGS",
    "SUMMARY",
    "TABLES",
    "ClientRecord",
    "Flight",
    "Journals",
    "Named",
    "Records",
    "RunFolder",
    "RunState",
    "is_free",
    "is_locked",
    "lock",
    "note_arithmetic",
    "read_versions",
]
