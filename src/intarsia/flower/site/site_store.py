"""What a site keeps of a run, on disk: its clients' states, their own blocks, the blocks they hold."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from intarsia.blocks import Block, BlockStore, Task
from intarsia.clients import AT_SITE, State, state_version
from intarsia.core import CheckpointError, ClientError, clear_drafts, make_folder, replacing


def token(state: State) -> dict[str, str]:
    """Return what the server keeps instead of a client's state: its hash (nothing for an empty one)."""
    return {AT_SITE: state_version(state)} if state else {}


class SiteStore:
    """One run's folder at a site.

    `site.json` names every state that the server may still build on, and the versions that each client holds; it
    is written whole or not at all, after the blocks that it names are synced. So a kill or a power cut at any moment
    loses nothing that the server was told of.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.blocks = BlockStore(folder / "blocks")
        self._states: dict[str, dict[str, State]] = {}
        self._held: dict[str, dict[str, str]] = {}
        self._pinned: list[str] = []
        self._load()
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
        kept = {key: before[key] for key in (*needed, task.state) if key in before}
        if state:
            kept[state_version(token(state))] = state
        self._states[task.client] = kept

    def save(self) -> None:
        """Write all this down, then remove the blocks that nothing names any more."""
        about = {"states": self._states, "held": self._held, "pinned": self._pinned}
        named = self._named()
        with replacing(self.folder / "site.json", json.dumps(about).encode()) as draft:
            self.blocks.sync(named, [draft])
        self.blocks.sweep(named)

    def _named(self) -> set[str]:
        states = [state for own in self._states.values() for state in own.values()]
        private = {version for state in states for version in state.get("private", {}).values()}
        return {*private, *self._pinned} | {
            version for own in self._held.values() for version in own.values()
        }

    def _load(self) -> None:
        path = self.folder / "site.json"
        if not path.exists():
            return
        try:
            about: dict[str, Any] = json.loads(path.read_bytes())
            self._states, self._held, self._pinned = about["states"], about["held"], about["pinned"]
        except (ValueError, KeyError, TypeError) as error:
            raise CheckpointError(
                f"{path} is damaged ({error!r}): put back a copy, or start the run anew"
            ) from error
