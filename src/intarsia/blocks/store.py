"""Blocks on disk by content: what a client keeps, what a checkpoint names."""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import Path

from intarsia.blocks.block import Block
from intarsia.core import CheckpointError, Refused, RunFolderError, WireError, sync, write_unsynced

VERSION = "[0-9a-f]{32}"
"""How a block's version is written: nothing else becomes part of a path."""


class BlockStore:
    """A folder of blocks named by the hash of their content; writing one twice costs nothing.

    There are no folders within: each would be one more thing to sync.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._synced: set[str] = set()
        """Blocks that are known to outlive a power cut."""

    def put(self, block: Block) -> str:
        """Keep a block, and return its version; one with a NaN or an infinity is refused."""
        path = self._path(block.version)
        if not path.exists():
            if block.flaw:
                raise Refused(f"{block.flaw}: such a block is not kept")
            write_unsynced(path, *block.pieces())
        return block.version

    def keep(self, version: str, data: bytes) -> None:
        """Keep a block that came as safetensors, by the version that its sender says: reading checks it."""
        path = self._path(version)
        if not path.exists():
            write_unsynced(path, data)

    def sync(
        self, versions: Collection[str], beside: Collection[Path] = (), entered: Collection[Path] = ()
    ) -> None:
        """Let these blocks, and other files, outlive a power cut: to be done before anything names them.

        Of files that are `entered`, the entries in their folders do so already.
        """
        new = set(versions) - self._synced
        sync([*map(self._path, new), *beside], entered)
        self._synced |= new

    def get(self, version: str) -> Block:
        """Return a block; missing or damaged content is an error that names the file."""
        path = self._path(version)
        try:
            block = Block.from_bytes(path.read_bytes())
        except FileNotFoundError:
            raise CheckpointError(f"{path} is missing: the run's state is incomplete") from None
        except OSError as error:
            raise RunFolderError(f"{path} cannot be read: {error.strerror or error}") from error
        except WireError as error:
            raise CheckpointError(f"{path} is damaged: {error}") from error
        if block.version != version:
            raise CheckpointError(f"{path} is damaged: its content is not what its name says")
        return block

    def remove(self, versions: Collection[str]) -> None:
        """Remove these blocks."""
        for version in versions:
            self._path(version).unlink(missing_ok=True)
        self._synced.difference_update(versions)

    def sweep(self, keep: Collection[str]) -> None:
        """Remove every block that is not named, and drafts that a killed writer left.

        After a power cut blocks that nothing names may be damaged: they must not be taken for what they should be.
        """
        wanted = set(keep)
        for path in self.folder.glob("*"):
            if path.suffix != ".safetensors" or path.stem not in wanted:
                path.unlink(missing_ok=True)
        self._synced &= wanted

    def _path(self, version: str) -> Path:
        if not re.fullmatch(VERSION, version):
            raise CheckpointError(f"'{version}' is no version of a block in {self.folder}")
        return self.folder / f"{version}.safetensors"
