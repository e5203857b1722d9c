"""Blocks on disk by content: what a client keeps, what a checkpoint names."""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path

from intarsia.blocks import Block, CheckpointError, WireError


def write_atomically(path: Path, *data: bytes | memoryview, durable: bool = False) -> None:
    """Write a file, of one piece or more, so that it is there whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}.draft")
    with draft.open("wb") as file:
        file.writelines(data)
        if durable:
            file.flush()
            os.fsync(file.fileno())
    os.replace(draft, path)


class BlockStore:
    """A folder of blocks named by the hash of their content; writing one twice costs nothing."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def put(self, block: Block) -> str:
        """Keep a block, and return its version."""
        path = self._path(block.version)
        if not path.exists():
            write_atomically(path, *block.pieces())
        return block.version

    def get(self, version: str) -> Block:
        """Return a block; missing or damaged content is an error that names the file."""
        path = self._path(version)
        try:
            block = Block.from_bytes(path.read_bytes())
        except FileNotFoundError:
            raise CheckpointError(f"{path} is missing: the run's state is incomplete") from None
        except WireError as error:
            raise CheckpointError(f"{path} is damaged: {error}") from error
        if block.version != version:
            raise CheckpointError(f"{path} is damaged: its content is not what its name says")
        return block

    def remove_damaged(self, versions: Collection[str]) -> None:
        """Remove those of these blocks that cannot be read, so that they are written again."""
        for version in versions:
            try:
                self.get(version)
            except CheckpointError:
                self._path(version).unlink(missing_ok=True)

    def remove(self, versions: Collection[str]) -> None:
        """Remove these blocks."""
        for version in versions:
            self._path(version).unlink(missing_ok=True)

    def sweep(self, keep: Collection[str]) -> None:
        """Remove every block that is not named, and drafts that a killed writer left."""
        wanted = set(keep)
        for path in self.folder.glob("*/*"):
            if path.suffix != ".safetensors" or path.stem not in wanted:
                path.unlink(missing_ok=True)

    def _path(self, version: str) -> Path:
        return self.folder / version[:2] / f"{version}.safetensors"
