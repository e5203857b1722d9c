"""Plug-ins in files: code of the user's own that settings name, and that runs with the user's own rights.

A file runs only if the user named it: in settings that are run, in `INTARSIA_PLUGINS`, in a site's own file, or in
Python. Run folders, apps and messages travel: what they name runs only if this user has named just this content before.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from importlib.machinery import SourceFileLoader
from itertools import zip_longest
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from intarsia.core import REGISTRIES, PluginError, adopt
from intarsia.data import cache_folder
from intarsia.experiment.settings import Settings

ENVIRONMENT = "INTARSIA_PLUGINS"
_LOADED: set[str] = set()
"""The hashes of all files that ran in this process."""


def plug_in(file: str | Path) -> list[str]:
    """Run a Python file of one's own; what it defines can be named in settings. Returns the names."""
    path = Path(file).expanduser().absolute()
    code = _read(path)
    digest = _digest(code)
    names = _run(path, digest, code)
    _LOADED.add(digest)
    _trust(digest)
    return names


def plug_in_named() -> None:
    """Run the files that the environment names."""
    for file in filter(None, os.environ.get(ENVIRONMENT, "").split(os.pathsep)):
        _plug_in_once(Path(file))


def with_plugins(settings: Settings) -> Settings:
    """Run the files that the user's own settings name; return the settings with what is in them, as hashes."""
    plug_in_named()
    found = tuple(_digest(_read(Path(file))) for file in settings.plugins)
    if settings.plugin_hashes and found != settings.plugin_hashes:
        raise PluginError(
            f"plugins: {', '.join(settings.plugins)}: another content than the settings were written for; put it "
            "right, or remove plugin_hashes to take it as it is"
        )
    for file in settings.plugins:
        _plug_in_once(Path(file))
    return settings.model_copy(update={"plugin_hashes": found}) if found else settings


def plug_in_again(settings: Settings, folder: Path) -> None:
    """Run the files of a run that is opened: only such as this user has named before, and unchanged."""
    plug_in_named()
    for file, recorded in zip_longest(settings.plugins, settings.plugin_hashes, fillvalue=""):
        if recorded in _LOADED:
            continue
        path = Path(file)
        if not os.path.isfile(path):
            raise PluginError(_again(folder, file, recorded, "is not there any more"))
        if _digest(_read(path)) != recorded:
            raise PluginError(_again(folder, file, recorded, "has changed since"))
        if not _trusted(recorded):
            raise PluginError(
                _again(folder, file, recorded, "was never named by you on this machine: read it")
            )
        _plug_in_once(path)


def without_plugins(settings: Settings) -> Settings:
    """Return settings that name no files: where they go, each has its own."""
    return settings.model_copy(update={"plugins": (), "plugin_hashes": ()})


def plugins_of(settings: Settings) -> dict[str, list[str]]:
    """Return the plug-ins that clients need for these settings, by registry."""
    inside = [value for value in settings.method.values() if isinstance(value, Mapping)]
    choices: dict[str, list[Mapping[str, Any]]] = {
        "methods": [settings.method],
        "sharings": [settings.sharing],
        "objectives": [settings.objective],
        "merges": [settings.merge],
        "codecs": [settings.codec],
        "models": [settings.model, *settings.models.values(), *inside],
    }
    found = {
        word: sorted({name for choice in own if REGISTRIES[word].is_plugin(name := str(choice.get("name")))})
        for word, own in choices.items()
    }
    return {word: names for word, names in found.items() if names}


def plug_in_files(files: Iterable[str], home: Path) -> None:
    """Run files that a file of the user's own names, relative to its folder, and those of the environment."""
    plug_in_named()
    for file in files:
        _plug_in_once(home / Path(file).expanduser())


def _again(folder: Path, file: str, recorded: str, what: str) -> str:
    return (
        f"the run in {folder} uses code of a file, {file} (sha256 {recorded or 'not recorded'}), which {what}. Then "
        f"name it yourself: {ENVIRONMENT}=FILE before the command, or intarsia.plug_in('FILE') in Python"
    )


def _plug_in_once(path: Path) -> None:
    if _digest(_read(path)) not in _LOADED:
        plug_in(path)


def _read(path: Path) -> bytes:
    try:
        return path.expanduser().read_bytes()
    except OSError as error:
        raise PluginError(f"plugins: {path} cannot be read: {error.strerror}") from error


def _digest(code: bytes) -> str:
    return hashlib.sha256(code).hexdigest()


def _run(path: Path, digest: str, code: bytes) -> list[str]:
    """Run just the code that was read, as a module of its own, and register what it defines."""
    name = f"intarsia_plugin_{digest[:16]}"
    loader = _Content(name, path, code)
    spec = importlib.util.spec_from_file_location(name, path, loader=loader)
    assert spec is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        loader.exec_module(module)
        names = adopt(_defined(module), str(path))
    except Exception as error:
        del sys.modules[name]
        if isinstance(error, PluginError):
            raise
        raise PluginError(f"plugins: {path} cannot be run: {type(error).__name__}: {error}") from error
    if not names:
        del sys.modules[name]
        raise PluginError(f"plugins: {path} defines nothing that settings can name: see docs/plugins.md")
    return names


class _Content(SourceFileLoader):
    """Runs just the content that was hashed: it reads neither the file again nor a compiled copy."""

    def __init__(self, name: str, path: Path, code: bytes) -> None:
        super().__init__(name, str(path))
        self.code = code

    def get_code(self, fullname: str) -> CodeType:
        """Return the content as code."""
        return self.source_to_code(self.code, self.path)


def _defined(module: ModuleType) -> list[object]:
    """Return what a module defines itself: its own classes, and objects."""
    return [
        value
        for value in vars(module).values()
        if not isinstance(value, type) or value.__module__ == module.__name__
    ]


def _mark(digest: str) -> Path:
    return cache_folder() / "plugins" / digest


def _trust(digest: str) -> None:
    """Note that this user named this content; where nothing can be written, it is asked for again."""
    with suppress(OSError):
        _mark(digest).parent.mkdir(parents=True, exist_ok=True)
        _mark(digest).touch()


def _trusted(digest: str) -> bool:
    return bool(digest) and _mark(digest).exists()
