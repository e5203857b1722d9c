"""Errors that say what was wrong, where, and what to do; warnings about what is hardly meant."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


class IntarsiaError(Exception):
    """Anything that the user can put right; the command line prints it without a traceback."""


class SettingsError(IntarsiaError):
    """A setting that is unknown, of the wrong kind, or out of range."""


class CutError(IntarsiaError):
    """A cut that does not give every tensor to exactly one block, or blocks that do not fit the model."""


class DataError(IntarsiaError):
    """Data that cannot be used: missing, empty, of the wrong shape."""


class AddressError(IntarsiaError):
    """An address that is malformed, unknown, or shared by blocks that do not fit together."""


class WireError(IntarsiaError):
    """Bytes that are no message of ours, or a message that is damaged."""


class RunFolderError(IntarsiaError):
    """A run folder that cannot be used: not writable, already used, or not a run."""


class TuningError(IntarsiaError):
    """A run without a score to choose by, or a search in which every trial failed."""


class CheckpointError(IntarsiaError):
    """A checkpoint that is damaged, incomplete, or belongs to another run."""


class ClientError(IntarsiaError):
    """A client's step that failed, with the stage and, where known, the block."""

    def __init__(self, message: str, *, stage: str = "", block: str = "", details: str = "") -> None:
        super().__init__(message)
        self.stage = stage
        self.block = block
        self.details = details


class Refused(IntarsiaError):  # noqa: N818
    """An update that was not merged because of what it holds."""

    def __init__(self, reason: str, *, block: str = "") -> None:
        super().__init__(reason)
        self.block = block


class IntarsiaWarning(UserWarning):
    """Something that works, but hardly as it was meant."""


class JudgedWarning(IntarsiaWarning):
    """Something that looks wrong with the result of a run; `summary.json` and `events.jsonl` have it too."""


def warn(text: str, kind: type[IntarsiaWarning] = IntarsiaWarning) -> None:
    """Warn the user of something that works, but hardly as it was meant."""
    warnings.warn(text, kind, stacklevel=_callers_level())


def _callers_level() -> int:
    """Return how far away, from `warn`, the first line is that is not ours: the user's."""
    level, frame = 1, inspect.currentframe()
    while (frame := frame.f_back if frame else None) and frame.f_globals.get("__name__", "").startswith(OURS):
        level += 1
    return level


OURS = __name__.partition(".")[0] + "."


@contextmanager
def warnings_told(tell: Callable[[str], None]) -> Iterator[None]:
    """Hand the text of our own warnings to this function; others are shown as usual."""
    with warnings.catch_warnings():
        usual = warnings.showwarning

        def show(message: Warning | str, category: type[Warning], *place: Any, **more: Any) -> None:
            if issubclass(category, JudgedWarning):
                return  # told with the result
            if issubclass(category, IntarsiaWarning):
                tell(str(message))
            else:
                usual(message, category, *place, **more)

        warnings.showwarning = show
        yield
