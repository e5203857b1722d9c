"""Exports on disk: checked before they are written, there whole or not at all."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from intarsia.core import SettingsError, file_name, make_folder, sync_folder, write_atomically
from intarsia.export.card import card
from intarsia.export.graph import (
    ExportError,
    Runner,
    check_onnx,
    run_onnx,
    run_pt2,
    run_safetensors,
    to_onnx,
    to_pt2,
    to_safetensors,
)
from intarsia.export.package import Check, Package

FORMATS = {
    ".onnx": "the model for onnxruntime, in any language",
    ".pt2": "the model for torch.export.load",
    ".safetensors": "the weights alone",
}
MODEL, RECORD, CARD = "model", "model.json", "README.md"


@dataclass(frozen=True)
class Exported:
    """What was written, and how far it is from the original."""

    path: Path
    files: tuple[Path, ...]
    checks: Mapping[str, Check]
    """By file."""

    @property
    def difference(self) -> float:
        """The largest difference from the original."""
        return max(check.difference for check in self.checks.values())

    @property
    def check(self) -> Check:
        """The check of the file that is furthest from the original."""
        return max(self.checks.values(), key=lambda check: check.difference)


def places_for(to: str | Path, clients: Iterable[str]) -> dict[str, Path]:
    """Return where each client's model is written: into a folder each, or as a name with {client} in it says."""
    several = str(to) if "{client}" in str(to) else os.path.join(str(to), "{client}")
    places = {name: Path(several.replace("{client}", file_name(name))) for name in clients}
    if len(set(places.values())) < len(places):
        raise SettingsError("to: two clients have names that give the same file: export them one by one")
    return places


def export(package: Package, to: Path, *, force: bool = False) -> Exported:
    """Write a model as .onnx, .pt2 or .safetensors, with a record and a card beside it; or all of them as a folder."""
    suffix = to.suffix.lower()
    if suffix and suffix not in FORMATS:
        raise SettingsError(
            f"to: '{to.name}' has no known ending: write {', '.join(FORMATS)}, or a folder's name without one"
        )
    if suffix:
        return _as_file(package, to, suffix, force)
    return _as_folder(package, to, force)


def _as_file(package: Package, to: Path, suffix: str, force: bool) -> Exported:
    record, words = to.with_name(f"{to.name}.json"), to.with_name(f"{to.name}.md")
    for path in (to, record, words):
        if path.is_dir() or (path.exists() and not force):
            raise ExportError(f"{path} is there already: choose another name, or write over it (--force)")
    data, check = _made(package, suffix, to.name)
    about = _record(package, {to.name: check})
    described = {to.name: FORMATS[suffix], record.name: "what is known of it"}
    write_atomically(to, data)
    write_atomically(record, _json(about))
    write_atomically(words, card(about, package.story, described).encode())
    return Exported(to, (to, record, words), {to.name: check})


def _as_folder(package: Package, to: Path, force: bool) -> Exported:
    earlier = (to / RECORD).exists()
    if to.is_file() or (to.exists() and any(to.iterdir()) and not (force and earlier)):
        how = "write over it (--force)" if earlier else "empty it: what is in it is no export"
        raise ExportError(f"{to} is there already: choose another name, or {how}")
    draft = to.with_name(f".{to.name}.{os.getpid()}.draft")
    shutil.rmtree(draft, ignore_errors=True)
    make_folder(draft)
    try:
        checks = _fill(package, draft)
        _replace(draft, to)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return Exported(to, tuple(sorted(to.iterdir())), checks)


def _fill(package: Package, folder: Path) -> dict[str, Check]:
    suffixes = [suffix for suffix in FORMATS if suffix != ".onnx" or has_onnx()]
    checks = {}
    for suffix in suffixes:
        name = f"{MODEL}{suffix}"
        data, checks[name] = _made(package, suffix, name)
        write_atomically(folder / name, data)
    about = _record(package, checks)
    write_atomically(folder / RECORD, _json(about))
    described = {f"{MODEL}{s}": FORMATS[s] for s in suffixes} | {RECORD: "what is known of it"}
    write_atomically(folder / CARD, card(about, package.story, described).encode())
    return checks


def _replace(draft: Path, to: Path) -> None:
    """Put a folder that is whole in the place of an earlier one."""
    aside = to.with_name(f".{to.name}.{os.getpid()}.before.draft")
    if to.exists():
        os.replace(to, aside)
    os.replace(draft, to)
    sync_folder(to.parent)
    shutil.rmtree(aside, ignore_errors=True)


def _made(package: Package, suffix: str, name: str) -> tuple[bytes, Check]:
    """Return a file's content after it was run and compared with the original."""
    if suffix == ".onnx":
        check_onnx()
    data = _MAKERS[suffix](package)
    return data, package.compare(_runner(package, suffix, data), name)


def _runner(package: Package, suffix: str, data: bytes) -> Runner:
    if suffix == ".safetensors":
        return run_safetensors(data, package.deployed)
    return run_onnx(data)[0] if suffix == ".onnx" else run_pt2(data)[0]


def _onnx(package: Package) -> bytes:
    return to_onnx(package.graph, package.deployed.names, package.about())


def _pt2(package: Package) -> bytes:
    return to_pt2(package.graph, package.about())


def _safetensors(package: Package) -> bytes:
    return to_safetensors(package.deployed.network, package.about())


_MAKERS: dict[str, Callable[[Package], bytes]] = {".onnx": _onnx, ".pt2": _pt2, ".safetensors": _safetensors}


def has_onnx() -> bool:
    """Return whether what ONNX needs is installed."""
    return all(find_spec(name) is not None for name in ("onnx", "onnxscript", "onnxruntime"))


def _record(package: Package, checks: Mapping[str, Check]) -> dict[str, Any]:
    worst = max(checks.values(), key=lambda check: check.difference)
    return {
        **package.about(),
        "checked": {name: check.to_json() for name, check in checks.items()},
        "checked_in_words": str(worst),
    }


def _json(about: Mapping[str, Any]) -> bytes:
    return (json.dumps(about, indent=1, ensure_ascii=False) + "\n").encode()
