"""Settings in TOML: read from a file or a text, with errors that name it."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, ValidationError

from intarsia.core.errors import SettingsError
from intarsia.core.part import explain


def read_toml(path: Path) -> dict[str, Any]:
    """Return what a TOML file says."""
    try:
        return parse_toml(path.read_text(encoding="utf-8"), str(path))
    except OSError as error:
        raise SettingsError(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise SettingsError(f"{path} is not TOML: {error}") from error


def parse_toml(text: str, where: str) -> dict[str, Any]:
    """Return what a TOML text says; `where` is what errors call it."""
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise SettingsError(f"{where} is not TOML: {error}") from error


class TomlFile(BaseModel):
    """Settings that have a TOML file of their own; paths in it are relative to the file."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    home: Path = Path()
    """The folder of the file."""

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read the file."""
        try:
            return cls.model_validate({**read_toml(path), "home": path.resolve().parent})
        except ValidationError as error:
            raise SettingsError(f"{path}: {explain(error, cls)}") from None
