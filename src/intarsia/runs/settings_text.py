"""The text of a run's settings, and copies of those that checkpoints were written under: what differs can be said."""

from __future__ import annotations

import hashlib
import tomllib
from functools import cached_property
from pathlib import Path
from typing import Any

import tomli_w

from intarsia.core import RunFolderError, differences, in_figures, write_atomically
from intarsia.runs.journal import ForeignCheckpoint

SETTINGS = "settings.toml"
ROUNDS = "rounds"
"""The one setting that may change while a run goes on."""


class SettingsText:
    """`settings.toml` of a run folder; `state/settings-HASH.toml` are the texts that checkpoints name by their hash."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / SETTINGS
        self._copies = folder / "state"
        self._known: dict[str, dict[str, Any]] = {}

    @cached_property
    def text(self) -> str:
        """The text as it was first read: what is edited while a run goes on changes nothing of it."""
        try:
            return self.path.read_text("utf8")
        except UnicodeDecodeError as error:
            raise RunFolderError(f"{self.path} is no text in UTF-8 ({error.reason}); {self._hint}") from None
        except OSError:
            raise RunFolderError(
                f"{self.path.parent} holds no run: there is no {SETTINGS} in it; give the folder of a run "
                "(by default runs/NAME-1)"
            ) from None

    @property
    def _hint(self) -> str:
        copies = sorted(self._copies.glob("settings-*.toml"))
        return f"{copies[-1]} is a copy of it" if copies else "put back a copy of it"

    @property
    def _present(self) -> dict[str, Any]:
        """What the text says."""
        try:
            return tomllib.loads(self.text)
        except (tomllib.TOMLDecodeError, RecursionError) as error:
            raise RunFolderError(f"{self.path} is not TOML: {error}; {self._hint}") from None

    def keep(self) -> str:
        """Keep a copy of the text for checkpoints that are written under it; return the hash that names it."""
        name = _hash(self.text)
        if not self._copy(name).exists():
            write_atomically(self._copy(name), self.text.encode())
        return name

    def set_rounds(self, rounds: int) -> None:
        """Write the text anew, with another number of rounds; what there was can still be read by its hash."""
        self.keep()
        text = tomli_w.dumps({**self._present, ROUNDS: rounds})
        write_atomically(self.path, text.encode())
        self.text = text

    @property
    def rounds(self) -> int:
        """How many rounds the run is to have."""
        return int(self._present.get(ROUNDS, 0))

    @property
    def checkpoint_every(self) -> int:
        """How many rounds lie between two checkpoints at most."""
        return int(self._present.get("checkpoints", {}).get("every", 1))

    def rounds_of(self, name: str) -> int:
        """Return how many rounds the settings ask for that have this hash."""
        return int(self._table(name).get(ROUNDS, 0))

    def check(self, name: str, checkpoint: Path) -> None:
        """Refuse a checkpoint that was written under other settings, but for the number of rounds."""
        if name == _hash(self.text):
            return
        there = self._table(name)
        found = differences(there, self._present) if there else {}
        if there and found.keys() <= {ROUNDS}:
            return
        raise ForeignCheckpoint(
            f"{checkpoint} belongs to a run with other settings than {self.path}"
            f"{f' ({in_figures(found)})' if found else ''}: put the right files together, or start a new run"
        )

    def _table(self, name: str) -> dict[str, Any]:
        """Return the settings that have this hash; nothing if there is no whole copy of them."""
        if name not in self._known:
            copy = self._copy(name)
            texts = [self.text, *([copy.read_text("utf8", "replace")] if copy.exists() else [])]
            self._known[name] = next((tomllib.loads(text) for text in texts if _hash(text) == name), {})
        return self._known[name]

    def _copy(self, name: str) -> Path:
        return self._copies / f"settings-{name[:16]}.toml"


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
