"""What a site keeps of a run, on disk: its clients' states, their own blocks, the blocks they hold."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from intarsia.blocks import Block, BlockStore, Task
from intarsia.blocks.plain import read_json
from intarsia.clients import AT_SITE, State, state_version
from intarsia.core import (
    CheckpointError,
    ClientError,
    clear_drafts,
    make_folder,
    replacing,
    write_atomically,
)

OWN_MODELS, SETUP = "own.json", "setup.json"


def token(state: State) -> dict[str, str]:
    """Return what the server keeps instead of a client's state: its hash (nothing for an empty one)."""
    return {AT_SITE: state_version(state)} if state else {}


class SiteStore:
    """One run's folder at a site.

    `site.json` names every state that the server may still build on, and the versions that each client holds; it
    is written whole or not at all, after the blocks that it names are synced. So a kill or a power cut at any moment
    loses nothing that the server was told of. `own.json` names what clients' own models were last made of, `setup.json`
    is what the server described. Who only reads changes nothing: the site's agent may be at work.
    """

    def __init__(self, folder: Path, reading: bool = False) -> None:
        self.folder = folder
        self._reading = reading
        self.blocks = BlockStore(folder / "blocks")
        self._states: dict[str, dict[str, State]] = {}
        self._held: dict[str, dict[str, str]] = {}
        self._pinned: list[str] = []
        self._own: dict[str, dict[str, Any]] = {}
        self._load()
        if reading:
            return
        make_folder(self.blocks.folder)
        clear_drafts(folder)
        self.blocks.sweep(self._named())

    def state(self, task: Task) -> State:
        """Return the client state that a task builds on."""
        if not task.state:
            return {}
        state = self.find(task.client, task.state)
        if state is None:
            raise ClientError(
                f"client '{task.client}': the task builds on state '{task.state}', which is not in {self.folder}. "
                "Was the folder emptied, or another one? Put it back, or start the run anew",
                stage="state",
            )
        return state

    def find(self, client: str, name: str) -> State | None:
        """Return a client state by the name that tasks give it, if it is here."""
        return self._states.get(client, {}).get(name)

    def block(self, version: str) -> Block | None:
        """Return a block that is here; None if it is not, or damaged (the server then sends it again)."""
        try:
            return self.blocks.get(version)
        except CheckpointError:
            if not self._reading:
                self.blocks.remove([version])
            return None

    def hold(self, task: Task, content: Mapping[str, Block]) -> None:
        """Keep the blocks of a task as received: the server will not send them again."""
        for address, version in task.versions.items():
            self.blocks.put(content[version])
            self._held.setdefault(task.client, {})[str(address)] = version

    def pin(self, block: Block) -> None:
        """Keep a block that models start from, for as long as the run."""
        self._pinned = sorted({*self._pinned, self.blocks.put(block)})

    def remember(self, task: Task, state: State, needed: Collection[str]) -> None:
        """Keep a client's new state, the one that it came from, and those that the server may go back to."""
        before = self._states.get(task.client, {})
        own = self._own.get(task.client, {}).get("task", {}).get("state", "")
        kept = {key: before[key] for key in (*needed, task.state, own) if key in before}
        if state:
            kept[state_version(token(state))] = state
        self._states[task.client] = kept

    def save(self) -> None:
        """Write all this down, then remove the blocks that nothing names any more."""
        self._write("site.json", {"states": self._states, "held": self._held, "pinned": self._pinned})

    def describe(self, about: Mapping[str, Any]) -> None:
        """Keep what the server described."""
        write_atomically(self.folder / SETUP, json.dumps(about).encode())

    @property
    def described(self) -> dict[str, Any]:
        """What the server described."""
        return read_json((self.folder / SETUP).read_bytes(), str(self.folder / SETUP))

    def keep_own(self, made: Sequence[tuple[Task, Any]], content: Mapping[str, Block]) -> None:
        """Keep what clients' own models were made of, with their scores; one that cannot be used leaves the last."""
        for task, scores in made:
            if not any(content[version].flaw for version in task.versions.values()):
                for version in task.versions.values():
                    self.blocks.put(content[version])
                header = {**task.header(), "records": [], "changes": {}}
                self._own[task.client] = {"task": header, "scores": scores}
        self._write(OWN_MODELS, {"clients": self._own})

    @property
    def own_clients(self) -> list[str]:
        """The clients whose own models can be made."""
        return list(self._own)

    def own(self, client: str) -> tuple[Task, list[dict[str, Any]]]:
        """Return the task that made a client's own model, all of whose blocks are here, and the model's scores."""
        kept = self._own[client]
        return Task.from_header(kept["task"]), kept["scores"]

    def _write(self, name: str, about: Mapping[str, Any]) -> None:
        named = self._named()
        with replacing(self.folder / name, json.dumps(about).encode()) as draft:
            self.blocks.sync(named, [draft])
        self.blocks.sweep(named)

    def _named(self) -> set[str]:
        states = [state for own in self._states.values() for state in own.values()]
        private = {version for state in states for version in state.get("private", {}).values()}
        own = {version for kept in self._own.values() for version in kept["task"]["versions"].values()}
        held = {version for own in self._held.values() for version in own.values()}
        return {*private, *self._pinned, *own, *held}

    def _load(self) -> None:
        for name, take in (("site.json", self._take), (OWN_MODELS, self._take_own)):
            if (self.folder / name).exists():
                self._load_one(self.folder / name, take)

    def _take(self, about: Mapping[str, Any]) -> None:
        self._states, self._held, self._pinned = about["states"], about["held"], about["pinned"]

    def _take_own(self, about: Mapping[str, Any]) -> None:
        self._own = about["clients"]

    def _load_one(self, path: Path, take: Callable[[Mapping[str, Any]], None]) -> None:
        try:
            take(json.loads(path.read_bytes()))
        except (ValueError, KeyError, TypeError) as error:
            raise CheckpointError(
                f"{path} is damaged ({error!r}): put back a copy, or start the run anew"
            ) from error
