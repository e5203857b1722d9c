"""Checkpoints as manifests: what a run is between two rounds, by the hashes of its blocks."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from intarsia.blocks import VERSION
from intarsia.core import CheckpointError, write_atomically
from intarsia.runs.journal import ForeignCheckpoint, Mark, foreign
from intarsia.runs.settings_text import SettingsText

FORMAT = 4
AS_IT_IS = ("run", "round", "totals", "best", "server", "groups", "initial")
"""What a manifest says of a state as the state itself has it."""
TABLES = ("metrics", "traffic", "events", "judged", "groups", "notes", "seconds")
Table = Annotated[str, Field(pattern=f"^({'|'.join(TABLES)})$")]
Version = Annotated[str, Field(pattern=f"^{VERSION}$")]
Count = Annotated[int, Field(ge=0)]


class CodeVersions(BaseModel):
    """The blocks of a code, and the version that it leads to."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    base: Version
    change: Version
    lost: Version
    version: Version


class Manifest(BaseModel):
    """One checkpoint, as its file holds it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    format: int
    settings: str
    """The hash of the run's settings."""
    run: Annotated[str, Field(pattern="^[0-9A-Za-z]+$")]
    round: Count
    pool: dict[str, Version]
    clients: Mark
    totals: dict[str, int | float]
    best: dict[str, Any]
    server: dict[str, Any]
    groups: dict[str, dict[str, str]]
    initial: Mapping[str, Mapping[str, Version]]
    codes: dict[str, CodeVersions]
    files: Mapping[Table, Count]
    """How long each table was."""
    seals: Mapping[Table, str] = {}
    """The hash of each table's content, but of times; a run of an earlier version has none."""

    def shared(self) -> set[str]:
        """Return the blocks that it names beside those of clients."""
        initial = {version for blocks in self.initial.values() for version in blocks.values()}
        codes = {v for code in self.codes.values() for v in (code.base, code.change, code.lost)}
        return {*self.pool.values()} | initial | codes

    def write(self, path: Path) -> None:
        """Write it, sealed, whole or not at all; all that it names must be synced by now."""
        text = json.dumps(self.model_dump())
        write_atomically(path, f"{_seal(text.encode())}\n{text}\n".encode())

    @classmethod
    def read(cls, path: Path, settings: SettingsText) -> Manifest:
        """Read the manifest of a run with these settings."""
        seal, _, text = path.read_bytes().partition(b"\n")
        if _seal(text.removesuffix(b"\n")).encode() != seal:
            raise CheckpointError(f"{path} is damaged or cut short")
        content = _table(text, path)
        if content.get("format") != FORMAT:
            raise ForeignCheckpoint(
                f"{path} has format {content.get('format')}, this version reads {FORMAT}: "
                "go on with the version of Intarsia that wrote it"
            )
        settings.check(str(content.get("settings")), path)
        try:
            manifest = cls.model_validate(content)
        except ValidationError as error:
            wrong = error.errors()[0]
            raise foreign(path, f"{'.'.join(map(str, wrong['loc']))}: {wrong['msg']}") from None
        if path != path_of(path.parent, manifest.round):
            raise CheckpointError(f"{path} is the checkpoint of round {manifest.round} under a wrong name")
        return manifest


def path_of(folder: Path, round: int) -> Path:
    """Return the file of a round's checkpoint."""
    return folder / f"checkpoint-{round:06d}.json"


def round_of(path: Path) -> int:
    """Return the round that a checkpoint's file is called after."""
    return int(path.stem.split("-")[1])


def _table(text: bytes, path: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(text))
    except (ValueError, TypeError, RecursionError) as error:
        raise foreign(path, str(error)) from None


def _seal(text: bytes) -> str:
    return hashlib.sha256(text).hexdigest()
