"""Blocks on disk by content: what a client keeps, what a checkpoint names."""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import Path

from intarsia.blocks.block import Block
from intarsia.blocks.packs import ENDING, Packs
from intarsia.core import CheckpointError, Refused, RunFolderError, WireError, sync, write_unsynced

VERSION = "[0-9a-f]{32}"
"""How a block's version is written: nothing else becomes part of a path."""
SMALL = 1 << 15
"""Up to how many bytes a block goes into a pack."""


class BlockStore:
    """A folder of blocks named by the hash of their content; writing one twice costs nothing.

    There are no folders within: each would be one more thing to sync. What is new has a file of its own, until `pack`.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._packs = Packs(folder)
        self._synced: set[str] = set()
        """Blocks that are known to outlive a power cut."""
        self._packed: set[str] = set()
        """Blocks with a file of their own that lie in packs too."""

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

    def pack(self, versions: Collection[str]) -> set[str]:
        """Lay the small ones of these blocks together, for good; return those that stay in files of their own.

        Nothing is removed until `tidy`. It is for one process to do: the one that removes and sweeps.
        """
        sizes = {version: size for version in versions if (size := _size(self._path(version))) is not None}
        small = {version: self._path(version) for version, size in sizes.items() if size <= SMALL}
        self._packs.add(small)
        self._packed |= small.keys()
        return sizes.keys() - small.keys()

    def tidy(self) -> None:
        """Remove the files whose blocks lie in packs."""
        for version in filter(self._packs.has, self._packed):
            self._path(version).unlink(missing_ok=True)
            self._synced.discard(version)
        self._packed = set()
        self._packs.tidy()

    def files(self) -> dict[Path, set[str]]:
        """Return the versions of the blocks that lie in each file."""
        single = {path: {path.stem} for path in self.folder.glob("*.safetensors")}
        return single | self._packs.held()

    def get(self, version: str) -> Block:
        """Return a block; missing or damaged content is an error that names the file."""
        path = self._path(version)
        try:
            return self._get(version)
        except OSError as error:
            name = error.filename or path
            raise RunFolderError(f"{name} cannot be read: {error.strerror or error}") from error

    def _get(self, version: str) -> Block:
        """Return a block from its own file; or from a pack, as a power cut may leave the file empty."""
        path = self._path(version)
        try:
            return _block(version, path, path.read_bytes())
        except (FileNotFoundError, CheckpointError) as error:
            found = self._packs.get(version)
            if found is not None:
                return _block(version, *found)
            if isinstance(error, CheckpointError):
                raise
        damaged = "".join(f"; {pack} is damaged" for pack in self._packs.damaged)
        raise CheckpointError(f"{path} is missing: the run's state is incomplete{damaged}")

    def remove(self, versions: Collection[str]) -> None:
        """Remove these blocks."""
        for version in versions:
            self._path(version).unlink(missing_ok=True)
            self._packs.drop(version)
        self._synced.difference_update(versions)

    def sweep(self, keep: Collection[str]) -> None:
        """Remove every block that is not named, and drafts that a killed writer left.

        After a power cut blocks that nothing names may be damaged: they must not be taken for what they should be.
        """
        wanted = set(keep)
        for path in self.folder.glob("*"):
            if path.suffix != ENDING and (path.suffix != ".safetensors" or path.stem not in wanted):
                path.unlink(missing_ok=True)
        self._packs.sweep(wanted)
        self._synced &= wanted

    def _path(self, version: str) -> Path:
        if not re.fullmatch(VERSION, version):
            raise CheckpointError(f"'{version}' is no version of a block in {self.folder}")
        return self.folder / f"{version}.safetensors"


def _block(version: str, path: Path, data: bytes) -> Block:
    try:
        block = Block.from_bytes(data)
    except WireError as error:
        raise CheckpointError(f"{path} is damaged: {error}") from error
    if block.version != version:
        raise CheckpointError(f"{path} is damaged: the content of block {version} is not what its name says")
    return block


def _size(path: Path) -> int | None:
    """Return how large a file is; None if it is not there."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return None
