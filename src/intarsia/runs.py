"""The run folder: settings, metrics, traffic, events, checkpoints and the summary.

    settings.toml    complete, can be run again
    metrics.jsonl    one line a round, client, split and stage
    traffic.jsonl    one line a message and block
    events.jsonl     clients that failed, updates that were refused
    groups.jsonl     clients that moved to another group
    notes.jsonl      what the method has to say of its rounds (FedMN: decisions, the global loss)
    seconds.jsonl    one line a round: what its time went into
    summary.json     the result
    population.json  who holds what: attributes, counts and labels of every client
    state/           checkpoints: a manifest of content hashes each, and the blocks they name

A round is atomic: a checkpoint names how long each file was, and going on from it cuts them back.
"""

from __future__ import annotations

import copy
import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Any

from intarsia.blocks import Address, Block, CheckpointError, Code, Pool, RunFolderError
from intarsia.engines import BlockStore, State, write_atomically
from intarsia.methods import Groups

try:
    import fcntl
except ImportError:  # no such lock on Windows
    fcntl = None  # type: ignore[assignment]

FORMAT = 1
SETTINGS, SUMMARY, POPULATION = "settings.toml", "summary.json", "population.json"
TABLES = ("metrics", "traffic", "events", "groups", "notes", "seconds")


@dataclass(frozen=True)
class ClientRecord:
    """What the run knows of a client between rounds."""

    held: Mapping[str, str] = field(default_factory=dict)
    """The versions that the client holds as received, by address."""
    state: State = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return the record as plain values."""
        return {"held": dict(self.held), "state": dict(self.state)}


@dataclass
class RunState:
    """All that a run is between two rounds."""

    run: str
    pool: Pool
    round: int = 0
    clients: dict[str, ClientRecord] = field(default_factory=dict)
    totals: dict[str, float] = field(default_factory=dict)
    """Seconds, bytes and counts so far."""
    best: dict[str, Any] = field(default_factory=dict)
    """The round with the best validation accuracy, and the test accuracy in it."""
    server: dict[str, Any] = field(default_factory=dict)
    """What the method keeps on the server."""
    groups: Groups = field(default_factory=dict)
    """Groups that were found."""
    initial: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """The versions of the blocks that each model started from."""
    files: Mapping[str, int] = field(default_factory=lambda: dict.fromkeys(TABLES, 0))
    """How long each table is."""
    codes: dict[Address, Code] = field(default_factory=dict)
    """How blocks follow from their last version, where they travel as changes."""

    def draft(self) -> RunState:
        """Return a copy that a round can change and throw away."""
        return replace(
            self,
            pool=self.pool.copy(),
            clients=dict(self.clients),
            totals=dict(self.totals),
            best=dict(self.best),
            server=copy.deepcopy(self.server),
            groups=copy.deepcopy(self.groups),
            codes=dict(self.codes),
        )

    def versions(self) -> set[str]:
        """Return the versions of all blocks that this state names."""
        private = {v for c in self.clients.values() for v in c.state.get("private", {}).values()}
        initial = {v for blocks in self.initial.values() for v in blocks.values()}
        codes = {b.version for c in self.codes.values() for b in (c.base, c.change, c.lost)}
        return {self.pool.version(address) for address in self.pool} | private | initial | codes


class ForeignCheckpoint(CheckpointError):  # noqa: N818
    """A whole checkpoint of another run: it is refused, and left as it is."""


class RunFolder:
    """One folder on disk that holds one run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.store = BlockStore(path / "state" / "blocks")
        self._files: dict[str, IO[bytes]] = {}
        self._lock: IO[bytes] | None = None
        self._written: dict[Path, set[str]] = {}
        """The versions that the checkpoints written here name, so that they need not be read again."""

    @classmethod
    def create(cls, path: Path, settings: str) -> RunFolder:
        """Make the folder of a new run; a used or unwritable one is refused."""
        folder = cls(path)
        try:
            if path.exists() and (not path.is_dir() or any(path.iterdir())):
                raise RunFolderError(
                    f"{path} is already used: choose another folder (--out DIR), "
                    f"or go on with the run in it (intarsia resume {path})"
                )
            (path / "state").mkdir(parents=True, exist_ok=True)
            folder._open()
            write_atomically(path / SETTINGS, settings.encode(), durable=True)
        except OSError as error:
            raise RunFolderError(f"cannot write into {path}: {error.strerror or error}") from error
        return folder

    @classmethod
    def reopen(cls, path: Path) -> RunFolder:
        """Open the folder of a run to go on with it."""
        folder = cls(path)
        _ = folder.settings_text
        try:
            (path / "state").mkdir(exist_ok=True)
            folder._open()
        except OSError as error:
            raise RunFolderError(f"cannot write into {path}: {error.strerror or error}") from error
        return folder

    @property
    def settings_text(self) -> str:
        """The text of `settings.toml`."""
        try:
            return (self.path / SETTINGS).read_text()
        except OSError:
            raise RunFolderError(f"{self.path} holds no run: there is no {SETTINGS} in it") from None

    def append(self, tables: Mapping[str, Iterable[Mapping[str, Any]]]) -> None:
        """Add lines to tables; they count once a state says that the tables are this long."""
        for table, rows in tables.items():
            self._files[table].write(b"".join(json.dumps(row).encode() + b"\n" for row in rows))
            self._files[table].flush()

    def lengths(self) -> dict[str, int]:
        """Return how long each table is."""
        return {name: file.tell() for name, file in self._files.items()}

    def roll_back(self, state: RunState) -> None:
        """Remove the lines that do not belong to the state."""
        self._cut_back(state.files, self.path)

    def rows(self, table: str) -> list[dict[str, Any]]:
        """Return all lines of a table."""
        path = self.path / f"{table}.jsonl"
        return [json.loads(line) for line in path.read_bytes().splitlines()] if path.exists() else []

    def summary(self) -> dict[str, Any]:
        """Return the summary of a run that has ended."""
        path = self.path / SUMMARY
        if not path.exists():
            raise RunFolderError(
                f"{self.path} has no {SUMMARY}: the run has not ended (intarsia resume {self.path})"
            )
        return dict(json.loads(path.read_bytes()))

    def population(self) -> dict[str, Any]:
        """Return who holds what; nothing if it was not written."""
        path = self.path / POPULATION
        return dict(json.loads(path.read_bytes())) if path.exists() else {}

    def write_population(self, about: Mapping[str, Any]) -> None:
        """Write who holds what."""
        write_atomically(self.path / POPULATION, (json.dumps(about) + "\n").encode())

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        """Write the summary."""
        write_atomically(self.path / SUMMARY, (json.dumps(summary, indent=2) + "\n").encode())

    def checkpoint(self, state: RunState, keep: int) -> None:
        """Save the state between two rounds; only blocks that changed are written."""
        for address in state.pool:
            self.store.put(state.pool.get(address))
        manifest = {
            "format": FORMAT,
            "settings": self._fingerprint(),
            "run": state.run,
            "round": state.round,
            "pool": {str(address): state.pool.version(address) for address in state.pool},
            "clients": {name: record.to_json() for name, record in sorted(state.clients.items())},
            "totals": state.totals,
            "best": state.best,
            "server": state.server,
            "groups": state.groups,
            "initial": state.initial,
            "codes": {str(a): self._keep_code(code) for a, code in state.codes.items()},
            "files": state.files,
        }
        text = json.dumps(manifest)
        seal = hashlib.sha256(text.encode()).hexdigest()
        write_atomically(self._manifest(state.round), f"{seal}\n{text}\n".encode(), durable=True)
        self._written[self._manifest(state.round)] = state.versions()
        self._forget(state, keep)

    def restore(self) -> RunState | None:
        """Return the newest whole checkpoint and cut the tables back to it; None if there is none yet."""
        manifests = self.manifests()
        problems = []
        for path in reversed(manifests):
            try:
                manifest = self._read(path)
            except ForeignCheckpoint:
                raise
            except CheckpointError as error:
                problems.append(str(error))
                path.unlink()
                continue
            try:
                state = self.load(manifest)
                self._cut_back(manifest["files"], path)
                return state
            except CheckpointError as error:
                problems.append(str(error))
                self.store.remove_damaged(_named(manifest))
        if manifests:
            raise CheckpointError("no checkpoint can be used: " + "; ".join(problems))
        self._cut_back(dict.fromkeys(TABLES, 0), self.path)
        return None

    def state_at(self, round: int | None = None) -> RunState:
        """Return the state of a round that has a checkpoint (the last by default)."""
        manifests = self.manifests()
        wanted = manifests[-1] if round is None and manifests else self._manifest(round or 0)
        if wanted not in manifests:
            there = ", ".join(str(int(p.stem.split("-")[1])) for p in manifests) or "none"
            raise CheckpointError(f"{self.path} has no checkpoint of round {round}; there are: {there}")
        return self.load(self._read(wanted))

    def load(self, manifest: Mapping[str, Any]) -> RunState:
        """Return the state that a manifest names, with every block checked."""
        pool = Pool({Address.parse(text): self.store.get(v) for text, v in manifest["pool"].items()})
        clients = {name: ClientRecord(**record) for name, record in manifest["clients"].items()}
        for record in clients.values():
            for version in record.state.get("private", {}).values():
                self.store.get(version)
        for versions in manifest["initial"].values():
            for version in versions.values():
                self.store.get(version)
        rest = ("totals", "best", "server", "groups", "initial", "files")
        plain = {name: manifest[name] for name in rest}
        codes = {Address.parse(a): self._code(own) for a, own in manifest.get("codes", {}).items()}
        return RunState(manifest["run"], pool, manifest["round"], clients, codes=codes, **plain)

    def _keep_code(self, code: Code) -> dict[str, str]:
        blocks = {"base": code.base, "change": code.change, "lost": code.lost}
        return {name: self.store.put(block) for name, block in blocks.items()} | {"version": code.version}

    def _code(self, named: Mapping[str, str]) -> Code:
        blocks = {name: self.store.get(named[name]) for name in ("base", "change", "lost")}
        return Code(**blocks, version=named["version"])

    def initial_blocks(self, state: RunState) -> dict[str, dict[str, Block]]:
        """Return the blocks that each model started from."""
        return {
            key: {name: self.store.get(version) for name, version in blocks.items()}
            for key, blocks in state.initial.items()
        }

    def manifests(self) -> list[Path]:
        """Return the checkpoints there are, oldest first."""
        return sorted((self.path / "state").glob("checkpoint-*.json"))

    def close(self) -> None:
        """Close the files and let go of the folder."""
        for file in (*self._files.values(), *([self._lock] if self._lock else [])):
            file.close()
        self._files, self._lock = {}, None

    def _open(self) -> None:
        self._lock = lock(self.path / "state" / "lock", f"{self.path} is in use by a run that has not ended")
        self._files = {name: (self.path / f"{name}.jsonl").open("ab") for name in TABLES}

    def _manifest(self, round: int) -> Path:
        return self.path / "state" / f"checkpoint-{round:06d}.json"

    def _fingerprint(self) -> str:
        return hashlib.sha256(self.settings_text.encode()).hexdigest()

    def _read(self, path: Path) -> dict[str, Any]:
        seal, _, text = path.read_bytes().partition(b"\n")
        if hashlib.sha256(text.removesuffix(b"\n")).hexdigest().encode() != seal:
            raise CheckpointError(f"{path} is damaged or cut short")
        manifest: dict[str, Any] = json.loads(text)
        if manifest["format"] != FORMAT:
            raise CheckpointError(f"{path} has format {manifest['format']}, this version reads {FORMAT}")
        if manifest["settings"] != self._fingerprint():
            raise ForeignCheckpoint(
                f"{path} belongs to a run with other settings than {self.path / SETTINGS}: "
                "put the right files together, or start a new run"
            )
        return manifest

    def _cut_back(self, lengths: Mapping[str, int], source: Path) -> None:
        for name, length in lengths.items():
            file = self._files[name]
            there = os.path.getsize(self.path / f"{name}.jsonl")
            if there < length:
                raise CheckpointError(
                    f"{self.path / name}.jsonl has {there} bytes, {source} says at least {length}: "
                    "lines were lost"
                )
            file.truncate(length)
            file.seek(0, os.SEEK_END)

    def _forget(self, state: RunState, keep: int) -> None:
        """Remove old checkpoints, but the best on validation, and the blocks that only they named."""
        manifests = self.manifests()
        best = self._manifest(state.best["round"]) if state.best else None
        for path in manifests[:-keep]:
            if path != best:
                path.unlink()
                self._written.pop(path, None)
        named = state.versions()
        for path in self.manifests():
            try:
                named |= self._written.get(path) or _named(self._read(path))
            except CheckpointError:
                path.unlink()
        self.store.sweep(named)


def lock(path: Path, taken: str) -> IO[bytes]:
    """Return a file that keeps others out until it is closed; `taken` is what they are told."""
    file = path.open("wb")
    if fcntl is not None:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            raise RunFolderError(taken) from None
    return file


def _named(manifest: Mapping[str, Any]) -> set[str]:
    private = (r["state"].get("private", {}) for r in manifest["clients"].values())
    codes = ({**code, "version": code["base"]} for code in manifest.get("codes", {}).values())
    tables = (manifest["pool"], *private, *manifest["initial"].values(), *codes)
    return {version for table in tables for version in table.values()}
