"""What a client keeps of the masks that it has made: at the client alone, and never twice the same."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from intarsia.core import CheckpointError, make_folder, write_atomically, write_unsynced

REMEMBERED = 10_000
"""How many sums a client remembers that it helped to open."""


class Vault:
    """A folder with one file a client: the secrets of its present session, and what sums it helped to open.

    It is no part of the client's state: a server may go back to an earlier state, and must not go back to masks that
    were used. So a step that uses them writes, for good, that it was taken, before its answer leaves.
    """

    def __init__(self, folder: Path, lasting: bool = True) -> None:
        self.folder = folder
        self.lasting = lasting
        """Whether a power cut must lose nothing: on one machine there is nobody to keep a secret from."""

    def session(self, client: str) -> dict[str, Any]:
        """Return the client's present session; empty if there is none."""
        return dict(self._read(client)["session"])

    def put(self, client: str, session: dict[str, Any], for_good: bool = False) -> None:
        """Keep the client's session as it is now (empty: it is over); a power cut may lose it: then it dropped out."""
        self._write(client, {**self._read(client), "session": session}, for_good)

    def opened(self, client: str, work: str) -> str | None:
        """Return with whom the client's part of this work was opened (None: it was not)."""
        found = self._read(client)["opened"].get(work)
        return None if found is None else str(found)

    def open(self, client: str, session: dict[str, Any], work: str, whose: str) -> None:
        """Keep the session, and remember with whom the client's part of this work is opened."""
        opened = {**self._read(client)["opened"], work: whose}
        for old in list(opened)[:-REMEMBERED]:
            del opened[old]
        self._write(client, {"session": session, "opened": opened}, for_good=True)

    def _path(self, client: str) -> Path:
        return self.folder / f"{hashlib.sha256(client.encode()).hexdigest()[:32]}.json"

    def _read(self, client: str) -> dict[str, Any]:
        path = self._path(client)
        if not path.exists():
            return {"session": {}, "opened": {}}
        try:
            about = json.loads(path.read_bytes())
            return {"session": dict(about["session"]), "opened": dict(about["opened"])}
        except (ValueError, KeyError, TypeError) as error:
            raise CheckpointError(
                f"{path} is damaged ({error!r}): put back a copy, or remove it if no round is being played"
            ) from error

    def _write(self, client: str, about: dict[str, Any], for_good: bool) -> None:
        if not self.folder.exists():
            make_folder(self.folder)
            self.folder.chmod(0o700)
        write = write_atomically if for_good and self.lasting else write_unsynced
        write(self._path(client), json.dumps(about).encode())
