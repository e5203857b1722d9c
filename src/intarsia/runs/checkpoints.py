"""Checkpoints as manifests: what a run is between two rounds, by the hashes of its blocks; and what they still name."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from intarsia.blocks import VERSION, Address, BlockStore, Code, Pool
from intarsia.clients import State
from intarsia.core import CheckpointError, write_atomically
from intarsia.runs.journal import ForeignCheckpoint, Mark, foreign
from intarsia.runs.settings_text import SettingsText
from intarsia.runs.state import ClientRecord, Flight, Records, RunState
from intarsia.runs.tables import TABLES

FORMAT = 4
AS_IT_IS = ("run", "round", "totals", "best", "server", "trust", "groups", "initial", "flying", "replaced")
"""What a manifest says of a state as the state itself has it."""
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
    trust: dict[str, Any] = Field(default_factory=dict)
    groups: dict[str, dict[str, str]]
    initial: Mapping[str, Mapping[str, Version]]
    codes: dict[str, CodeVersions]
    flying: dict[str, Flight] = Field(default_factory=dict)
    """Clients that train while the server goes on."""
    replaced: dict[str, Count] = Field(default_factory=dict)
    """How often the block of an address was replaced meanwhile."""
    files: Mapping[Table, Count]
    """How long each table was."""
    seals: Mapping[Table, str] = {}
    """The hash of each table's content, but of times; a run of an earlier version has none."""

    def shared(self) -> set[str]:
        """Return the blocks that it names beside those of clients."""
        initial = {version for blocks in self.initial.values() for version in blocks.values()}
        codes = {v for code in self.codes.values() for v in (code.base, code.change, code.lost)}
        flown = {version for flight in self.flying.values() for version in flight.versions.values()}
        return {*self.pool.values()} | initial | codes | flown

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


class Named:
    """The client states and blocks that the checkpoints on disk name."""

    def __init__(self) -> None:
        self.rounds: list[int] = []
        """The rounds that have a checkpoint, in order."""
        self._present: dict[str, ClientRecord] = {}
        self._since: dict[str, int] = {}
        """By client: the first checkpoint that names the present record."""
        self._earlier: dict[str, list[tuple[int, ClientRecord]]] = {}
        """By client: earlier records that are named, each with the first checkpoint that names it."""
        self._changed_after: dict[int, set[str]] = {}
        """By checkpoint: whose records are others in the next one."""
        self._shared: dict[int, Collection[str]] = {}
        """By checkpoint: the versions that it names beside those of clients."""
        self._count: Counter[str] = Counter()

    def states(self, client: str) -> list[State]:
        """Return every state of a client that a checkpoint names."""
        present = [self._present[client]] if client in self._present else []
        return [record.state for record in (*(r for _, r in self._earlier.get(client, ())), *present)]

    def versions(self) -> Collection[str]:
        """Return every block that a checkpoint names."""
        return self._count.keys()

    def unnamed(self, records: Iterable[ClientRecord]) -> set[str]:
        """Return those blocks of these records that no checkpoint names."""
        return {version for record in records for version in record.private if version not in self._count}

    def add(self, round: int, changed: Mapping[str, ClientRecord], shared: Collection[str]) -> None:
        """Note a checkpoint: the newest, or the newest once more."""
        for client, record in changed.items():
            self._count.update(record.private)
            if client in self._present:
                before = (self._since[client], self._present[client])
                self._earlier.setdefault(client, []).append(before)
            self._present[client], self._since[client] = record, round
        self._count.update(shared)
        last, self._shared[round] = self._shared.get(round, ()), shared
        self._lose(last)
        self.rounds = sorted({*self.rounds, round})
        if len(self.rounds) > 1:
            self._changed_after.setdefault(self.rounds[-2], set()).update(changed)

    def remove(self, round: int) -> set[str]:
        """Forget a checkpoint that is not the newest; return the blocks that none names any more."""
        self.rounds.remove(round)
        lost = list(self._shared.pop(round))
        clients = self._changed_after.pop(round, set())
        earlier = [kept for kept in self.rounds if kept < round]
        if earlier:
            self._changed_after.setdefault(earlier[-1], set()).update(clients)
        for client in clients:
            lost += self._prune(client)
        return self._lose(lost)

    def _prune(self, client: str) -> list[str]:
        """Forget the records of a client that no checkpoint names; return their blocks."""
        earlier = self._earlier.pop(client, [])
        ends = [*(first for first, _ in earlier[1:]), self._since[client]]
        kept, lost = [], list[str]()
        for (first, record), end in zip(earlier, ends[: len(earlier)], strict=True):
            if any(first <= round < end for round in self.rounds):
                kept.append((first, record))
            else:
                lost += record.private
        if kept:
            self._earlier[client] = kept
        return lost

    def _lose(self, versions: Iterable[str]) -> set[str]:
        self._count.subtract(versions)
        gone = {version for version in versions if self._count[version] <= 0}
        for version in gone:
            del self._count[version]
        return gone


def load_state(manifest: Manifest, records: Mapping[str, ClientRecord], store: BlockStore) -> RunState:
    """Return the state that a manifest names, with every block checked."""
    pool = Pool({Address.parse(text): store.get(version) for text, version in manifest.pool.items()})
    for record in records.values():
        for version in record.private:
            store.get(version)
    for versions in manifest.initial.values():
        for version in versions.values():
            store.get(version)
    return RunState(
        pool=pool,
        clients=Records(records),
        files=dict.fromkeys(TABLES, 0) | dict(manifest.files),
        flown={v: store.get(v) for flight in manifest.flying.values() for v in flight.versions.values()},
        codes={Address.parse(address): _code(own, store) for address, own in manifest.codes.items()},
        **{name: getattr(manifest, name) for name in AS_IT_IS},
    )


def keep_code(code: Code, store: BlockStore) -> CodeVersions:
    """Put the blocks of a code into the store; return their versions."""
    base, change, lost = (store.put(block) for block in (code.base, code.change, code.lost))
    return CodeVersions(base=base, change=change, lost=lost, version=code.version)


def _code(named: CodeVersions, store: BlockStore) -> Code:
    base, change, lost = (store.get(version) for version in (named.base, named.change, named.lost))
    return Code(base=base, change=change, lost=lost, version=named.version)
