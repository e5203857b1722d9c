"""The run folder: settings, metrics, traffic, events, checkpoints and the summary.

    settings.toml    complete, can be run again
    metrics.jsonl    one line a round, client, split and stage
    traffic.jsonl    one line a message and block; a long one is packed when the run has ended (traffic.jsonl.gz)
    events.jsonl     clients that failed, updates that were refused, what looks wrong at the end
    judged.jsonl     what clients' own models are worth after the last round, beside baselines
    groups.jsonl     clients that moved to another group
    notes.jsonl      what the method has to say of its rounds (FedMN: decisions, the global loss)
    privacy.jsonl    releases under privacy, one line each, never cut back (`trust/ledger.py`)
    seconds.jsonl    one line a round: what its time went into
    summary.json     the result
    versions.json    the versions of Intarsia and what it stands on that played it
    population.json  who holds what: attributes, counts, labels and the form of inputs of every client
    page.html        a page about the run (`report/live/page_file.py`); now.json, while it goes on: who has answered
    state/           checkpoints: a manifest of content hashes each, the blocks they name (clients' small ones in packs:
                     `blocks/packs.py`), and the clients' journal;
                     own models of the last round that took data to make (`experiment/kept.py`)

A round is atomic: a checkpoint names how long each table was, and going on from it cuts them back. All that a manifest
names is synced before it: a checkpoint outlives a power cut, or is not there.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

from intarsia.blocks import BlockStore
from intarsia.core import (
    CheckpointError,
    RunFolderError,
    clear_drafts,
    make_folder,
    sync_folder,
    write_atomically,
)
from intarsia.runs.checkpoints import (
    AS_IT_IS,
    FORMAT,
    Manifest,
    Named,
    keep_code,
    load_state,
    path_of,
    round_of,
)
from intarsia.runs.journal import ForeignCheckpoint, Journal, Journals
from intarsia.runs.places import is_free, lock, refuse_links, set_aside
from intarsia.runs.settings_text import SETTINGS, SettingsText
from intarsia.runs.state import ClientRecord, RunState
from intarsia.runs.tables import TABLES, Tables, read_object
from intarsia.runs.versions import note_versions

SUMMARY, POPULATION = "summary.json", "population.json"


class RunFolder:
    """One folder on disk that holds one run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._state = path / "state"
        self._settings = SettingsText(path)
        self.written_for = 0
        """How many rounds the run was to have when the checkpoint was written that it goes on from (0: from none)."""
        self.store = BlockStore(self._state / "blocks")
        self._journals = Journals(self._state)
        self.tables = Tables(path)
        self._lock: IO[bytes] | None = None
        self.named = Named()
        """The client states and blocks that checkpoints name: the run may come back to them."""
        self._thread: ThreadPoolExecutor | None = None
        self._saving: Future[Journal] | None = None
        self._journal: Journal | None = None
        """Where the last checkpoint's records lie; None: nothing can be added to them, all are to be written."""
        self._journal_of: dict[int, int] = {}
        """The number of each checkpoint's journal."""
        self._records: Mapping[str, ClientRecord] | None = None
        """The records whose changes are in the journal."""
        self._synced: Mapping[str, int] = {}
        """How much of each table is known to outlive a power cut."""
        self._entered: set[Path] = set()
        """Tables and journals whose entries in their folders are known to outlive one: they are never made anew."""
        self._keeping = (1 << 30, -1)
        """How many checkpoints the last one wanted to be kept, and the best round."""

    @classmethod
    def create(cls, path: Path, settings: str) -> RunFolder:
        """Make the folder of a new run; a used or unwritable one is refused."""
        folder = cls(path)
        with folder.writing():
            if not is_free(path):
                raise RunFolderError(
                    f"{path} is already used: choose another folder (--out DIR), "
                    f"or go on with the run in it (intarsia resume {path})"
                )
            folder._open()
            write_atomically(path / SETTINGS, settings.encode())
            note_versions(path)
        return folder

    @classmethod
    def reopen(cls, path: Path) -> RunFolder:
        """Open the folder of a run to go on with it."""
        folder = cls(path)
        _ = folder.settings_text
        refuse_links(path)
        with folder.writing():
            folder._open()
            note_versions(path)
        return folder

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Say what could not be written, and why."""
        try:
            yield
        except OSError as error:
            more = f"; when that is put right: intarsia resume {self.path}" if self.tables.opened else ""
            name = error.filename or self.path
            raise RunFolderError(
                f"cannot write into {self.path}: {name}: {error.strerror or error}{more}"
            ) from error

    @property
    def settings_text(self) -> str:
        """The text of `settings.toml`."""
        return self._settings.text

    @property
    def checkpoints(self) -> list[int]:
        """The rounds whose states are on disk, oldest first."""
        return [round_of(path) for path in self._manifests()]

    def set_rounds(self, rounds: int) -> None:
        """Let the run have another number of rounds; whatever it has ended with is to be made anew."""
        with self.writing():
            (self.path / SUMMARY).unlink(missing_ok=True)
            self._settings.set_rounds(rounds)

    def append(self, tables: Mapping[str, Iterable[Mapping[str, Any]]]) -> None:
        """Add lines to tables; they count once a state says that the tables are this long."""
        with self.writing():
            self.tables.append(tables)

    def roll_back(self, state: RunState) -> None:
        """Remove the lines that do not belong to the state."""
        with self.writing():
            self.tables.cut_back(state.files)
            self._synced = {}

    def rows(self, table: str, growing: bool = False) -> list[dict[str, Any]]:
        """Return all lines of a table; of one that a run is adding to (`growing`), those that are whole."""
        return self.tables.rows(table, growing)

    def summary(self) -> dict[str, Any]:
        """Return the summary of a run that has ended."""
        path = self.path / SUMMARY
        if not path.exists():
            raise RunFolderError(
                f"{self.path} has no {SUMMARY}: the run has not ended (intarsia resume {self.path})"
            )
        summary = read_object(str(path), path.read_bytes())
        if "method" not in summary:
            raise RunFolderError(f"{path} is damaged: it does not name the method")
        return summary

    def population(self) -> dict[str, Any]:
        """Return who holds what; nothing if it was not written."""
        path = self.path / POPULATION
        return read_object(str(path), path.read_bytes()) if path.exists() else {}

    def write_population(self, about: Mapping[str, Any]) -> None:
        """Write who holds what."""
        with self.writing():
            write_atomically(self.path / POPULATION, (json.dumps(about) + "\n").encode())

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        """Write the summary; with the one of a run that has ended, no table grows any more."""
        with self.writing():
            if summary.get("finished"):
                self.tables.pack()
            write_atomically(self.path / SUMMARY, (json.dumps(summary, indent=2) + "\n").encode())

    def checkpoint(self, state: RunState, keep: int) -> None:
        """Begin to save the state between two rounds; only what changed is written.

        That happens beside the next round. The checkpoint before this one is on disk when this returns, or what
        went wrong with it is raised; `saved` waits for this one.
        """
        self.written()
        with self.writing():
            self._begin(state, keep)

    def _begin(self, state: RunState, keep: int) -> None:
        journal, self._journal = self._journal, None
        settled = state.clients.settle()
        whole = journal is None or journal.outgrown or settled.everyone is not self._records
        changed = settled.everyone if whole else settled.changed
        self.named.add(state.round, changed, state.shared())
        self._forget(self.named.rounds[:-1])
        self.store.remove(self.named.unnamed(settled.replaced))
        self._records = settled.everyone
        self._keeping = (keep, state.best.get("round", -1))
        later, seals = replace(state, totals=dict(state.totals)), self.tables.seals(state.files)
        self._thread = self._thread or ThreadPoolExecutor(1, "intarsia-saving")
        self._saving = self._thread.submit(
            self._write, later, dict(changed), None if whole else journal, seals
        )

    def saved(self) -> None:
        """Wait until the last checkpoint is on disk, and remove whatever none names."""
        self.written()
        with self.writing():
            self._forget(self.named.rounds)
            self._sweep()

    def _sweep(self) -> None:
        self.store.sweep(self.named.versions())
        self._journals.clear(self._journal_of.values())

    def rewrite(self, state: RunState) -> None:
        """Write a checkpoint once more, with other records."""
        self._write(state, dict(state.clients), None, self.tables.seals(state.files))
        self.store.tidy()
        self._journals.clear({self._read(path).clients.number for path in self._manifests()})

    def written(self) -> None:
        """Wait for the checkpoint that is being written."""
        if self._saving is None:
            return
        wait([self._saving])
        saving, self._saving = self._saving, None
        with self.writing():
            self._journal = saving.result()
            self.store.tidy()
        self._journal_of[self.named.rounds[-1]] = self._journal.mark.number

    def _write(
        self,
        state: RunState,
        records: Mapping[str, ClientRecord],
        journal: Journal | None,
        seals: Mapping[str, str],
    ) -> Journal:
        """Write the blocks, the records that changed (without a journal: all), then the manifest that names them."""
        for block in (*state.pool.blocks(), *state.flown.values()):
            self.store.put(block)
        codes = {str(address): keep_code(code, self.store) for address, code in state.codes.items()}
        journal = self._journals.add(journal, records) if journal else self._journals.begin(records)
        manifest = Manifest(
            format=FORMAT,
            settings=self._settings.keep(),
            pool={str(address): state.pool.version(address) for address in state.pool},
            clients=journal.mark,
            codes=codes,
            files=state.files,
            seals=seals,
            **{name: getattr(state, name) for name in AS_IT_IS},
        )
        private = {version for record in records.values() for version in record.private}
        shared = manifest.shared()
        single = self.store.pack(private - shared)
        tables = [self.tables.path(t) for t in TABLES if self._synced.get(t, 0) != state.files.get(t, 0)]
        files = {*tables, *self._journals.files(journal.mark.number)}
        self.store.sync(shared | single, files - self._entered, files & self._entered)
        self._synced = dict(state.files)
        self._entered |= files
        manifest.write(path_of(self._state, state.round))
        return journal

    def restore(self) -> RunState | None:
        """Return the newest whole checkpoint and cut the tables back to it; None if there is none yet.

        Of a run that now has another length, the round that was or now is its last is played anew: it ends otherwise.
        If none of those that are there can be used, nothing is changed.
        """
        with self.writing():
            return self._restore()

    def _restore(self) -> RunState | None:
        problems = []
        for path in self._candidates():
            try:
                manifest = self._read(path)
                records, journal = self._journals.read(manifest.clients)
                state = load_state(manifest, records, self.store)
                self.tables.check(manifest.files, manifest.seals, path)
            except ForeignCheckpoint:
                raise
            except CheckpointError as error:
                problems.append(str(error))
                continue
            self.written_for = self._settings.rounds_of(manifest.settings)
            self._go_on_from(path, state, journal)
            return state
        self._refuse_remains(problems)
        self._clear()
        return None

    def _candidates(self) -> list[Path]:
        """Return the checkpoints, in the order in which they are tried."""
        newest_first = self._manifests()[::-1]
        if len(newest_first) > 1 and self._ends_otherwise(newest_first[0]):
            newest, before, *older = newest_first
            if round_of(newest) - round_of(before) <= self._settings.checkpoint_every:
                return [before, newest, *older]
        return newest_first

    def _ends_otherwise(self, path: Path) -> bool:
        """Return whether a checkpoint lies after what was, or now is, the last round of a run of another length."""
        try:
            manifest = self._read(path)
        except CheckpointError:
            return False
        was, now = self._settings.rounds_of(manifest.settings), self._settings.rounds
        return was != now and manifest.round in (was, now)

    def _refuse_remains(self, problems: Sequence[str]) -> None:
        """Refuse to begin anew where a run has been."""
        remains = [str(self.tables.path(table)) for table, length in self.tables.lengths().items() if length]
        if not problems and remains:
            problems = [f"{self._state} holds none, but there are lines in {', '.join(remains)}"]
        if problems:
            self.tables.forget_made()
            raise CheckpointError(
                f"no checkpoint can be used: {'; '.join(problems)}. Nothing was changed: put back copies of what "
                "is damaged or missing, or start a new run in another folder"
            )

    def state_at(self, round: int | None = None) -> RunState:
        """Return the state of a round that has a checkpoint (the last by default)."""
        manifests = self._manifests()
        wanted = manifests[-1] if round is None and manifests else path_of(self._state, round or 0)
        if wanted not in manifests:
            there = ", ".join(map(str, self.checkpoints)) or "none"
            raise CheckpointError(f"{self.path} has no checkpoint of round {round}; there are: {there}")
        manifest = self._read(wanted)
        return load_state(manifest, self._journals.read(manifest.clients)[0], self.store)

    def _go_on_from(self, restored: Path, state: RunState, journal: Journal | None) -> None:
        """Take over the checkpoints there are; those that cannot be read, or are newer, are set aside."""
        before: Mapping[str, ClientRecord] = {}
        for path in self._manifests():
            try:
                if path > restored and self._ends_otherwise(path):
                    path.unlink()
                    continue
                if path > restored:
                    raise CheckpointError(f"{path} could not be used")
                manifest = self._read(path)
                records, _ = self._journals.read(manifest.clients)
            except CheckpointError:
                set_aside(path)
                continue
            changed = {name: record for name, record in records.items() if before.get(name) != record}
            self.named.add(manifest.round, changed, manifest.shared())
            self._journal_of[manifest.round] = manifest.clients.number
            before = records
        self._records, self._journal = state.clients.settle().everyone, journal
        self.roll_back(state)
        state.files = self.tables.lengths()
        self._clear()

    def _clear(self) -> None:
        """Remove what no checkpoint names; nothing that was set aside may come back after a power cut."""
        self._sweep()
        sync_folder(self._state)

    def _manifests(self) -> list[Path]:
        """Return the checkpoints there are, oldest first."""
        return sorted(self._state.glob("checkpoint-*.json"))

    def close(self) -> None:
        """Finish what is being written, close the files and let go of the folder."""
        if self._thread is not None:
            self._thread.shutdown()
            self._thread = None
        self.tables.close()
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def _open(self) -> None:
        make_folder(self.store.folder)
        self._lock = lock(self._state / "lock", f"{self.path} is in use by a run that has not ended")
        clear_drafts(self.path)
        self.tables.open()

    def _read(self, path: Path) -> Manifest:
        return Manifest.read(path, self._settings)

    def _forget(self, rounds: Sequence[int]) -> None:
        """Of these checkpoints, remove the old ones, but the best on validation, and the blocks that only they name."""
        keep, best = self._keeping
        lost: set[int | None] = set()
        for round in rounds[:-keep]:
            if round != best:
                path_of(self._state, round).unlink(missing_ok=True)
                lost.add(self._journal_of.pop(round, None))
                self.store.remove(self.named.remove(round))
        if lost - set(self._journal_of.values()):
            self._journals.clear(self._journal_of.values())
