"""The run folder."""

from intarsia.runs.folder import SUMMARY, RunFolder
from intarsia.runs.journal import Journals
from intarsia.runs.manifests import TABLES
from intarsia.runs.places import is_free, lock
from intarsia.runs.records import ClientRecord, Named, Records
from intarsia.runs.settings_text import ROUNDS, SETTINGS
from intarsia.runs.state import RunState

__all__ = [
    "ROUNDS",
    "SETTINGS",
    "SUMMARY",
    "TABLES",
    "ClientRecord",
    "Journals",
    "Named",
    "Records",
    "RunFolder",
    "RunState",
    "is_free",
    "lock",
]
