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
    state/           checkpoints: a manifest of content hashes each, the blocks they name, and clients.jsonl

A round is atomic: a checkpoint names how long each file was, and going on from it cuts them back. What the run knows
of its clients is written as it changes, a line a checkpoint: a manifest names the lines that make up its own.
"""

from __future__ import annotations

import copy
import hashlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import IO, Any

from intarsia.blocks import Address, Block, CheckpointError, Code, Pool, RunFolderError
from intarsia.engines import BlockStore, State, write_atomically
from intarsia.methods import Groups
from intarsia.records import ClientRecord, Named, Records

try:
    import fcntl
except ImportError:  # no such lock on Windows
    fcntl = None  # type: ignore[assignment]

FORMAT = 2
INLINE = 1
"""The format whose manifests list all clients themselves; it is still read."""
CLIENTS = "clients.jsonl"
SETTINGS, SUMMARY, POPULATION = "settings.toml", "summary.json", "population.json"
TABLES = ("metrics", "traffic", "events", "groups", "notes", "seconds")


@dataclass
class RunState:
    """All that a run is between two rounds."""

    run: str
    pool: Pool
    round: int = 0
    clients: Records = field(default_factory=Records)
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
    restarts: dict[Address, int] = field(default_factory=dict)
    """How often a method restarted a block."""

    def draft(self) -> RunState:
        """Return a copy that a round can change and throw away."""
        return replace(
            self,
            pool=self.pool.copy(),
            clients=self.clients.draft(),
            totals=dict(self.totals),
            best=dict(self.best),
            server=copy.deepcopy(self.server),
            groups={block: dict(of) for block, of in self.groups.items()},
            codes=dict(self.codes),
            restarts=dict(self.restarts),
        )

    def shared(self) -> set[str]:
        """Return the versions of all blocks that this state names beside those of its clients."""
        initial = {v for blocks in self.initial.values() for v in blocks.values()}
        codes = {b.version for c in self.codes.values() for b in (c.base, c.change, c.lost)}
        return {block.version for block in self.pool.blocks()} | initial | codes


@dataclass(frozen=True)
class _Journal:
    """The lines of `clients.jsonl` that make up the records of a checkpoint."""

    start: int = 0
    end: int = 0
    digest: Any = field(default_factory=hashlib.sha256)
    """The running hash of these lines."""

    def then(self, line: bytes) -> _Journal:
        digest = self.digest.copy()
        digest.update(line)
        return _Journal(self.start, self.end + len(line), digest)

    def to_json(self) -> dict[str, Any]:
        return {"start": self.start, "end": self.end, "sha256": self.digest.hexdigest()}


class ForeignCheckpoint(CheckpointError):  # noqa: N818
    """A whole checkpoint of another run or another version: it is refused, and left as it is."""


class RunFolder:
    """One folder on disk that holds one run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.store = BlockStore(path / "state" / "blocks")
        self._files: dict[str, IO[bytes]] = {}
        self._lock: IO[bytes] | None = None
        self._named = Named()
        self._thread: ThreadPoolExecutor | None = None
        self._saving: Future[_Journal] | None = None
        self._journal: _Journal | None = None
        """Where the last checkpoint's records lie; None: nothing can be added to them, all are to be written."""
        self._records: Mapping[str, ClientRecord] | None = None
        """The records whose changes are in the journal."""
        self._keeping = (1 << 30, -1)
        """How many checkpoints the last one wanted to be kept, and the best round."""

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
        lines = path.read_bytes().splitlines() if path.exists() else []
        return [_object(f"{path}, line {number}", line) for number, line in enumerate(lines, 1)]

    def summary(self) -> dict[str, Any]:
        """Return the summary of a run that has ended."""
        path = self.path / SUMMARY
        if not path.exists():
            raise RunFolderError(
                f"{self.path} has no {SUMMARY}: the run has not ended (intarsia resume {self.path})"
            )
        summary = _object(str(path), path.read_bytes())
        if "method" not in summary:
            raise RunFolderError(f"{path} is damaged: it does not name the method")
        return summary

    def population(self) -> dict[str, Any]:
        """Return who holds what; nothing if it was not written."""
        path = self.path / POPULATION
        return _object(str(path), path.read_bytes()) if path.exists() else {}

    def write_population(self, about: Mapping[str, Any]) -> None:
        """Write who holds what."""
        write_atomically(self.path / POPULATION, (json.dumps(about) + "\n").encode())

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        """Write the summary."""
        write_atomically(self.path / SUMMARY, (json.dumps(summary, indent=2) + "\n").encode())

    def checkpoint(self, state: RunState, keep: int) -> None:
        """Begin to save the state between two rounds; only what changed is written.

        That happens beside the next round. The checkpoint before this one is on disk when this returns, or what
        went wrong with it is raised; `saved` waits for this one.
        """
        self.written()
        journal, self._journal = self._journal, None
        settled = state.clients.settle()
        whole = journal is None or settled.everyone is not self._records
        changed = settled.everyone if whole else settled.changed
        self._named.add(state.round, changed, state.shared())
        self._forget(self._named.rounds[:-1])
        self.store.remove(self._named.unnamed(settled.replaced))
        self._records = settled.everyone
        self._keeping = (keep, state.best.get("round", -1))
        lines = {name: record.to_json() for name, record in changed.items()}
        later = replace(state, totals=dict(state.totals))
        self._thread = self._thread or ThreadPoolExecutor(1, "intarsia-saving")
        self._saving = self._thread.submit(self._write, later, lines, None if whole else journal)

    def saved(self) -> None:
        """Wait until the last checkpoint is on disk, and remove whatever none names."""
        self.written()
        self._forget(self._named.rounds)
        self.store.sweep(self._named.versions())

    def rewrite(self, state: RunState) -> None:
        """Write a checkpoint once more, with other records."""
        self._write(state, {name: record.to_json() for name, record in state.clients.items()}, None)

    def states(self, client: str) -> list[State]:
        """Return every state of a client that a checkpoint names: the run may come back to it."""
        return self._named.states(client)

    def written(self) -> None:
        """Wait for the checkpoint that is being written."""
        if self._saving is None:
            return
        wait([self._saving])
        saving, self._saving = self._saving, None
        try:
            self._journal = saving.result()
        except OSError as error:
            raise RunFolderError(
                f"cannot write a checkpoint into {self.path}: {error.strerror or error}; when that is put right: "
                f"intarsia resume {self.path}"
            ) from error

    def _write(self, state: RunState, records: Mapping[str, Any], journal: _Journal | None) -> _Journal:
        """Write the blocks, the records that changed (without a journal: all), then the manifest that names them."""
        for block in state.pool.blocks():
            self.store.put(block)
        journal = self._write_records(records, journal)
        manifest = {
            "format": FORMAT,
            "settings": self._fingerprint,
            "run": state.run,
            "round": state.round,
            "pool": {str(address): state.pool.version(address) for address in state.pool},
            "clients": journal.to_json(),
            "totals": state.totals,
            "best": state.best,
            "server": state.server,
            "groups": state.groups,
            "initial": state.initial,
            "codes": {str(a): self._keep_code(code) for a, code in state.codes.items()},
            "restarts": {str(address): count for address, count in state.restarts.items()},
            "files": state.files,
        }
        text = json.dumps(manifest)
        seal = hashlib.sha256(text.encode()).hexdigest()
        write_atomically(self._manifest(state.round), f"{seal}\n{text}\n".encode(), durable=True)
        return journal

    def _write_records(self, records: Mapping[str, Any], journal: _Journal | None) -> _Journal:
        path = self.path / "state" / CLIENTS
        with path.open("ab") as file:
            if journal is None:
                journal = _Journal(file.tell(), file.tell())
            if not records:
                return journal
            file.truncate(journal.end)
            line = json.dumps(records).encode() + b"\n"
            file.write(line)
            file.flush()
            os.fsync(file.fileno())
        return journal.then(line)

    def _records_of(
        self, manifest: Mapping[str, Any], source: Path
    ) -> tuple[dict[str, ClientRecord], _Journal | None]:
        """Return a checkpoint's records, and where they lie, if that is not in the manifest itself."""
        lines = manifest["clients"]
        if manifest["format"] == INLINE:
            return {name: ClientRecord(**record) for name, record in lines.items()}, None
        path, journal = self.path / "state" / CLIENTS, _Journal(lines["start"], lines["start"])
        text = _part_of(path, lines["start"], lines["end"])
        journal = journal.then(text)
        if journal.to_json() != lines:
            raise CheckpointError(f"{path} is damaged or cut short: it is not what {source} names")
        records: dict[str, Any] = {}
        for line in text.splitlines():
            records |= json.loads(line)
        return {name: ClientRecord(**record) for name, record in records.items()}, journal

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
                records, journal = self._records_of(manifest, path)
            except CheckpointError as error:
                problems.append(str(error))
                continue
            try:
                state = self._load(manifest, records)
                self._cut_back(manifest["files"], path)
            except CheckpointError as error:
                problems.append(str(error))
                private = {version for record in records.values() for version in record.private}
                self.store.remove_damaged(_shared(manifest) | private)
                continue
            self._go_on_from(path, state, journal)
            return state
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
        manifest = self._read(wanted)
        return self._load(manifest, self._records_of(manifest, wanted)[0])

    def _go_on_from(self, restored: Path, state: RunState, journal: _Journal | None) -> None:
        """Take over the checkpoints there are; those that cannot be read, or are newer, are of no use any more."""
        before: Mapping[str, ClientRecord] = {}
        for path in self.manifests():
            try:
                if path > restored:
                    raise CheckpointError(f"{path} could not be used")
                manifest = self._read(path)
                records, _ = self._records_of(manifest, path)
            except CheckpointError:
                path.unlink()
                continue
            changed = {name: record for name, record in records.items() if before.get(name) != record}
            self._named.add(manifest["round"], changed, _shared(manifest))
            before = records
        self._records, self._journal = state.clients.settle().everyone, journal

    def _load(self, manifest: Mapping[str, Any], records: Mapping[str, ClientRecord]) -> RunState:
        """Return the state that a manifest names, with every block checked."""
        pool = Pool({Address.parse(text): self.store.get(v) for text, v in manifest["pool"].items()})
        for record in records.values():
            for version in record.private:
                self.store.get(version)
        for versions in manifest["initial"].values():
            for version in versions.values():
                self.store.get(version)
        rest = ("totals", "best", "server", "groups", "initial", "files")
        plain = {name: manifest[name] for name in rest}
        codes = {Address.parse(a): self._code(own) for a, own in manifest.get("codes", {}).items()}
        restarts = {Address.parse(a): count for a, count in manifest.get("restarts", {}).items()}
        own = (manifest["run"], pool, manifest["round"], Records(records))
        return RunState(*own, codes=codes, restarts=restarts, **plain)

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

    def has_checkpoint(self, round: int) -> bool:
        """Return whether the state after a round is on disk."""
        return self._manifest(round).exists()

    def close(self) -> None:
        """Finish what is being written, close the files and let go of the folder."""
        if self._thread is not None:
            self._thread.shutdown()
            self._thread = None
        for file in (*self._files.values(), *([self._lock] if self._lock else [])):
            file.close()
        self._files, self._lock = {}, None

    def _open(self) -> None:
        self._lock = lock(self.path / "state" / "lock", f"{self.path} is in use by a run that has not ended")
        self._files = {name: (self.path / f"{name}.jsonl").open("ab") for name in TABLES}

    def _manifest(self, round: int) -> Path:
        return self.path / "state" / f"checkpoint-{round:06d}.json"

    @cached_property
    def _fingerprint(self) -> str:
        return hashlib.sha256(self.settings_text.encode()).hexdigest()

    def _read(self, path: Path) -> dict[str, Any]:
        seal, _, text = path.read_bytes().partition(b"\n")
        if hashlib.sha256(text.removesuffix(b"\n")).hexdigest().encode() != seal:
            raise CheckpointError(f"{path} is damaged or cut short")
        manifest: dict[str, Any] = json.loads(text)
        if manifest["format"] not in (INLINE, FORMAT):
            raise ForeignCheckpoint(
                f"{path} has format {manifest['format']}, this version reads {INLINE} and {FORMAT}: "
                "go on with the version of Intarsia that wrote it"
            )
        if manifest["settings"] != self._fingerprint:
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

    def _forget(self, rounds: Sequence[int]) -> None:
        """Of these checkpoints, remove the old ones, but the best on validation, and the blocks that only they name."""
        keep, best = self._keeping
        for round in rounds[:-keep]:
            if round != best:
                self._manifest(round).unlink(missing_ok=True)
                self.store.remove(self._named.remove(round))


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


def _part_of(path: Path, start: int, end: int) -> bytes:
    if start == end:
        return b""
    try:
        with path.open("rb") as file:
            file.seek(start)
            return file.read(end - start)
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror or error}") from error


def _shared(manifest: Mapping[str, Any]) -> set[str]:
    """Return the blocks that a manifest names itself."""
    codes = ({**code, "version": code["base"]} for code in manifest.get("codes", {}).values())
    tables = (manifest["pool"], *manifest["initial"].values(), *codes)
    return {version for table in tables for version in table.values()}


def _object(where: str, text: bytes) -> dict[str, Any]:
    """Return an object written as JSON."""
    try:
        return dict(json.loads(text))
    except (ValueError, TypeError) as error:
        raise RunFolderError(f"{where} is damaged: {error}") from error
