"""Power cuts without a power switch: what a program did to a folder, played into another up to any moment.

`record` watches a program with strace. `Disk` plays its calls: what was not synced when the power went is lost, and entries
of folders that were not synced may be there or not, each as it likes. `VARIANTS` are ways in which that can turn out.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import random
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path

CALLS = "openat,write,fsync,fdatasync,rename,mkdir,unlink,rmdir,ftruncate"
UNEXPECTED = "pwrite64,writev,pwritev,truncate,link,linkat,renameat,renameat2,unlinkat,mkdirat,creat,open"
VARIANTS = ("least", "names", "zeros", "mixed")

_STRING = re.compile(r'"((?:\\x[0-9a-f]{2})*)"')
_FILE = re.compile(r"\d+<((?:\\x[0-9a-f]{2})*)>")


@dataclass(frozen=True)
class Call:
    """One call of the system that was done: its name, the path that it is about, and what belongs to it."""

    name: str
    path: str
    data: bytes = b""
    number: int = 0
    """The length that a file was cut to; or who syncs, if others did something meanwhile."""


def strace_works() -> bool:
    """Whether programs can be watched here."""
    if not sys.platform.startswith("linux") or not shutil.which("strace"):
        return False
    return subprocess.run(["strace", "-o", "/dev/null", "true"], capture_output=True).returncode == 0


def record(program: Callable[[Path], None], folder: Path, log: Path) -> list[Call]:
    """Run a function in a process of its own; return what it and its children did to a folder, in order."""
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    process = context.Process(target=_watched, args=(program, folder, theirs))
    process.start()
    watch = [
        "strace",
        "-f",
        "-y",
        "-xx",
        "-s",
        "9999999",
        "-e",
        f"trace={CALLS},{UNEXPECTED}",
        "-e",
        "signal=none",
    ]
    strace = subprocess.Popen(
        [*watch, "-o", str(log), "-p", str(process.pid)], stderr=subprocess.PIPE, text=True
    )
    assert strace.stderr is not None
    assert "attached" in strace.stderr.readline()
    ours.send("go")
    process.join()
    strace.communicate()
    assert process.exitcode == 0, "the program failed"
    return [call for call in _calls(log.read_text()) if _is_in(call.path, folder)]


def _watched(program: Callable[[Path], None], folder: Path, pipe: Connection) -> None:
    allow_any_tracer, any_process = 0x59616D61, ctypes.c_ulong(-1)
    ctypes.CDLL(None).prctl(allow_any_tracer, any_process)
    pipe.recv()
    program(folder)


def _is_in(path: str, folder: Path) -> bool:
    return path == str(folder) or path.startswith(f"{folder}/")


def _calls(text: str) -> Iterator[Call]:
    """Return the calls in the order in which they were done; a sync also when it began, if others came between."""
    begun: dict[str, str] = {}
    for line in text.splitlines():
        process, _, rest = line.partition(" ")
        rest = rest.strip()
        if rest.endswith("<unfinished ...>"):
            begun[process] = rest.removesuffix("<unfinished ...>")
            if rest.startswith(("fsync(", "fdatasync(")):
                yield Call("begin", _files(rest)[0], number=int(process))
            continue
        if rest.startswith("<... "):
            call = _parse(begun.pop(process) + rest.partition("resumed>")[2], int(process))
        else:
            call = _parse(rest, 0)
        if call is not None:
            yield call


def _parse(text: str, process: int) -> Call | None:
    name, bracket, rest = text.partition("(")
    arguments, _, result = rest.rpartition(" = ")
    if not bracket or (not name.isalnum() and "_" not in name) or result.startswith(("-1", "?")):
        return None
    strings = [_bytes(s) for s in _STRING.findall(arguments)]
    files = _files(arguments)
    if name == "openat":
        kind = "create" if "O_CREAT" in arguments else "look"
        return Call("cut" if "O_TRUNC" in arguments else kind, strings[0].decode())
    if name == "write":
        done = int(result.split()[0])
        return Call(name, files[0], strings[0][:done])
    if name == "ftruncate":
        return Call(name, files[0], number=int(arguments.rpartition(",")[2].strip(" )")))
    if name in ("fsync", "fdatasync"):
        return Call("sync", files[0], number=process)
    if name == "rename":
        return Call(name, strings[0].decode(), strings[1])
    path = strings[0].decode() if strings else files[0]
    return Call(name, path)


def _files(text: str) -> list[str]:
    return [_bytes(file).decode() for file in _FILE.findall(text)]


def _bytes(escaped: str) -> bytes:
    return bytes.fromhex(escaped.replace("\\x", ""))


@dataclass
class _File:
    content: bytes = b""
    kept: bytes = b""
    """What is on the disk for good."""


@dataclass
class _Folder:
    entries: dict[str, _File | _Folder] = field(default_factory=dict)
    kept: dict[str, _File | _Folder] = field(default_factory=dict)


class Disk:
    """A folder as a disk may show it after a power cut."""

    def __init__(self, root: Path) -> None:
        self.root = str(root)
        self.top = _Folder()
        self._begun: dict[int, bytes | dict[str, _File | _Folder]] = {}
        """What files and folders held when a sync of them began."""

    def play(self, call: Call) -> None:
        """Do one call."""
        getattr(self, f"_{call.name}", self._unexpected)(call)

    def _unexpected(self, call: Call) -> None:
        raise AssertionError(f"{call.name} of {call.path}: this is not played here")

    def _look(self, call: Call) -> None:
        """Opening a file to read changes nothing."""

    def _create(self, call: Call) -> None:
        parent, name = self._place(call.path)
        parent.entries.setdefault(name, _File())

    def _cut(self, call: Call) -> None:
        self._create(call)
        self._file(call.path).content = b""

    def _write(self, call: Call) -> None:
        self._file(call.path).content += call.data

    def _ftruncate(self, call: Call) -> None:
        file = self._file(call.path)
        file.content = file.content[: call.number].ljust(call.number, b"\0")

    def _begin(self, call: Call) -> None:
        node = self._node(call.path)
        self._begun[call.number] = dict(node.entries) if isinstance(node, _Folder) else node.content

    def _sync(self, call: Call) -> None:
        if call.number not in self._begun:
            self._begin(call)
        node = self._node(call.path)
        node.kept = self._begun.pop(call.number)  # type: ignore[assignment]

    def _rename(self, call: Call) -> None:
        source, name = self._place(call.path)
        target, new = self._place(call.data.decode())
        target.entries[new] = source.entries.pop(name)

    def _mkdir(self, call: Call) -> None:
        if call.path != self.root:
            parent, name = self._place(call.path)
            parent.entries[name] = _Folder()

    def _unlink(self, call: Call) -> None:
        parent, name = self._place(call.path)
        del parent.entries[name]

    _rmdir = _unlink

    def _node(self, path: str) -> _File | _Folder:
        node: _File | _Folder = self.top
        for part in path.removeprefix(self.root).strip("/").split("/"):
            if part:
                assert isinstance(node, _Folder)
                node = node.entries[part]
        return node

    def _file(self, path: str) -> _File:
        node = self._node(path)
        assert isinstance(node, _File), path
        return node

    def _place(self, path: str) -> tuple[_Folder, str]:
        parent, _, name = path.rpartition("/")
        node = self._node(parent)
        assert isinstance(node, _Folder), path
        return node, name

    def show(self, out: Path, variant: str, seed: int = 0) -> None:
        """Write what is there after a cut now, in one of the ways in which it can turn out."""
        _show(self.top, out, variant, random.Random(f"{variant} {seed}"))


def _show(folder: _Folder, out: Path, variant: str, chance: random.Random) -> None:
    out.mkdir()
    for name in sorted(folder.entries.keys() | folder.kept.keys()):
        old = variant == "least" or (variant == "mixed" and chance.random() < 0.5)
        node = (folder.kept if old else folder.entries).get(name)
        if isinstance(node, _Folder):
            _show(node, out / name, variant, chance)
        elif node is not None:
            (out / name).write_bytes(_content(node, variant, chance))


def _content(file: _File, variant: str, chance: random.Random) -> bytes:
    """Return what is left of a file: what was synced; more of it, or other bytes, is possible too."""
    if variant == "zeros" and file.content.startswith(file.kept):
        return file.kept.ljust(len(file.content), b"\0")
    if variant == "mixed" and file.content.startswith(file.kept):
        return file.content[: chance.randint(len(file.kept), len(file.content))]
    return file.kept
