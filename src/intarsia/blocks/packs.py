"""Packs: small blocks of many clients in few files.

A file for each would take twice its bytes on most disks, and a sync of its own.
"""

from __future__ import annotations

import hashlib
import struct
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from intarsia.core import CheckpointError, naming, replacing, sync

ENDING = ".pack"
ALIKE = 8
"""So many packs of about the same size become one."""
FULL = 1 << 22
"""From how many bytes on a pack is left as it is, until too much of it is needed no more."""
AT_ONCE = 1 << 24
"""About how many bytes are written anew at a time."""
_COUNT, _ENTRY = struct.Struct(">I"), struct.Struct(">16sQI")

Source = tuple[Path, int, int]
"""Where bytes lie: a file, the first byte, how many."""


class Pack:
    """A file that never changes: how many blocks it has, where each lies, by version, and the blocks.

    It is called after the hash of its table, which is all that is held of it.
    """

    def __init__(self, path: Path, table: bytes) -> None:
        self.path = path
        self._table = table

    @classmethod
    def open(cls, path: Path) -> Pack:
        """Read the table of a pack; a damaged one is an error that names the file."""
        with path.open("rb") as file:
            start, size = file.read(_COUNT.size), path.stat().st_size
            length = _COUNT.unpack(start)[0] * _ENTRY.size if len(start) == _COUNT.size else size + 1
            table = file.read(length) if length <= size else b""
        if len(table) != length or _name(table) != path.name:
            raise CheckpointError(f"{path} is damaged: its table is not what its name says")
        return cls(path, table)

    @classmethod
    def write(cls, folder: Path, sources: Mapping[bytes, Source]) -> Pack:
        """Write blocks, by version, from where they lie now; once this returns, the pack is there for good."""
        order = sorted(sources)
        at, entries = _COUNT.size + len(order) * _ENTRY.size, []
        for key in order:
            entries.append(_ENTRY.pack(key, at, sources[key][2]))
            at += sources[key][2]
        table = b"".join(entries)
        path = folder / _name(table)
        with replacing(path) as draft:
            with naming(path), draft.open("wb") as file:
                file.write(_COUNT.pack(len(order)) + table)
                file.writelines(_read(sources[key]) for key in order)
            sync([draft])
        return cls(path, table)

    def __len__(self) -> int:
        return len(self._table) // _ENTRY.size

    def version(self, number: int) -> bytes:
        """Return the version of a block by its place in the table."""
        return self._table[number * _ENTRY.size : number * _ENTRY.size + 16]

    def find(self, key: bytes) -> int:
        """Return the place of a version in the table; -1 if it is not there."""
        number = bisect_left(range(len(self)), key, key=self.version)
        return number if number < len(self) and self.version(number) == key else -1

    def source(self, number: int) -> Source:
        """Return where a block lies, by its place in the table."""
        _, at, length = _ENTRY.unpack_from(self._table, number * _ENTRY.size)
        return self.path, at, length

    @cached_property
    def size(self) -> int:
        """Bytes of all blocks."""
        return sum(self.source(number)[2] for number in range(len(self)))


def _name(table: bytes) -> str:
    return hashlib.sha256(table).hexdigest()[:32] + ENDING


def _read(source: Source) -> bytes:
    path, at, length = source
    with naming(path), path.open("rb") as file:
        file.seek(at)
        return file.read(length)


@dataclass
class _Own:
    """A pack of a store that changes, and which of its blocks are needed no more."""

    pack: Pack
    gone: bytearray
    waste: int = 0
    """Bytes of those."""

    @classmethod
    def of(cls, pack: Pack, needed: Callable[[bytes], bool]) -> _Own:
        own = cls(pack, bytearray(len(pack)))
        for number in range(len(pack)):
            if not needed(pack.version(number)):
                own.drop(number)
        return own

    def drop(self, number: int) -> None:
        """Let go of a block."""
        if not self.gone[number]:
            self.gone[number] = 1
            self.waste += self.pack.source(number)[2]

    def has(self, key: bytes) -> bool:
        """Whether a block is here and needed."""
        number = self.pack.find(key)
        return number >= 0 and not self.gone[number]

    @property
    def size(self) -> int:
        """Bytes of the blocks that are needed."""
        return self.pack.size - self.waste

    def sources(self) -> dict[bytes, Source]:
        """Return where the blocks lie that are needed."""
        numbers = (number for number in range(len(self.pack)) if not self.gone[number])
        return {self.pack.version(number): self.pack.source(number) for number in numbers}


class Packs:
    """The packs of a folder. Many may read; one, who knows what is needed, adds to them and lets go."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._seen: dict[Path, Pack] = {}
        """What was there at the last look."""
        self.damaged: list[Path] = []
        """Packs that cannot be read, at the last look."""
        self._own: dict[Path, _Own] | None = None
        self._outdated: list[Path] = []
        """Packs whose blocks lie in others by now."""

    def held(self) -> dict[Path, set[str]]:
        """Return the versions of the blocks that lie in each pack, needed or not."""
        self._look()
        return {path: {pack.version(n).hex() for n in range(len(pack))} for path, pack in self._seen.items()}

    def get(self, version: str) -> tuple[Path, bytes] | None:
        """Return the pack that has a block, and its bytes; None if none has it. Packs may be written anew meanwhile."""
        key = bytes.fromhex(version)
        while True:
            seen = self._seen
            for source in _places(seen.values(), key):
                try:
                    return source[0], _read(source)
                except FileNotFoundError:
                    break
            self._look()
            if self._seen.keys() == seen.keys():
                return None

    def add(self, files: Mapping[str, Path]) -> None:
        """Add blocks, by version, from files of their own; small and wasteful packs are written anew with them."""
        keys = {bytes.fromhex(version): path for version, path in files.items()}
        new = {key: path for key, path in keys.items() if not self._has(key)}
        if not new:
            return
        owned, due = self._owned(), self._due()
        sources = {key: source for own in due for key, source in own.sources().items()}
        sources |= {key: (path, 0, path.stat().st_size) for key, path in new.items()}
        packs = [Pack.write(self.folder, part) for part in _parts(sources)]
        for own in due:
            del owned[own.pack.path]
        owned.update({pack.path: _Own.of(pack, lambda _: True) for pack in packs})
        self._outdated += [own.pack.path for own in due if own.pack.path not in owned]

    def tidy(self) -> None:
        """Remove the packs that were written anew."""
        for path in self._outdated:
            if path not in self._owned():
                path.unlink(missing_ok=True)
        self._outdated = []

    def has(self, version: str) -> bool:
        """Whether a block lies in a pack, and is needed."""
        return self._has(bytes.fromhex(version))

    def _has(self, key: bytes) -> bool:
        return any(own.has(key) for own in self._owned().values())

    def drop(self, version: str) -> None:
        """Let go of a block: its bytes are there until its pack is written anew, or all of that is needed no more."""
        key, owned = bytes.fromhex(version), self._owned()
        for path, own in list(owned.items()):
            if own.has(key):
                own.drop(own.pack.find(key))
                if not own.size:
                    del owned[path]
                    path.unlink(missing_ok=True)

    def sweep(self, wanted: Collection[str]) -> None:
        """Let go of all other blocks than these, and of packs that hold none of them or cannot be read."""
        self._look()
        owned = [_Own.of(pack, lambda key: key.hex() in wanted) for pack in self._seen.values()]
        self._own = {own.pack.path: own for own in owned if own.size}
        self._outdated = []
        for path in [*self.damaged, *self._seen.keys() - self._own.keys()]:
            path.unlink(missing_ok=True)

    def _look(self) -> None:
        """Take in what is there now."""
        seen, self.damaged = dict[Path, Pack](), []
        for path in sorted(self.folder.glob(f"*{ENDING}")):
            try:
                seen[path] = self._seen.get(path) or Pack.open(path)
            except FileNotFoundError:
                continue
            except CheckpointError:
                self.damaged.append(path)
        self._seen = seen

    def _owned(self) -> dict[Path, _Own]:
        if self._own is None:
            self._look()
            self._own = {path: _Own.of(pack, lambda _: True) for path, pack in self._seen.items()}
        return self._own

    def _due(self) -> list[_Own]:
        """Return the packs to write anew: a quarter of which is needed no more, or many that are small."""
        due, alike = [], defaultdict(list)
        for own in self._owned().values():
            if 4 * own.waste > own.pack.size:
                due.append(own)
            elif own.size < FULL:
                alike[own.size.bit_length() // 3].append(own)
        many = [own for _, group in sorted(alike.items()) if len(group) >= ALIKE for own in group]
        return list(_up_to(AT_ONCE, sorted(due, key=lambda own: own.size) + many))


def _places(packs: Iterable[Pack], key: bytes) -> Iterator[Source]:
    for pack in packs:
        number = pack.find(key)
        if number >= 0:
            yield pack.source(number)


def _up_to(most: int, packs: Iterable[_Own]) -> Iterator[_Own]:
    """Yield the first packs, one at least, for as long as there are no more bytes than this in them."""
    total = 0
    for own in packs:
        if total and total + own.size > most:
            return
        yield own
        total += own.size


def _parts(sources: Mapping[bytes, Source]) -> Iterator[dict[bytes, Source]]:
    """Yield blocks in parts that are not too large for one pack."""
    part, total = dict[bytes, Source](), 0
    for key, source in sources.items():
        if part and total + source[2] > AT_ONCE:
            yield part
            part, total = {}, 0
        part[key] = source
        total += source[2]
    if part:
        yield part
