"""Which stage of a client's step is running, for the error that names it."""

from __future__ import annotations

import contextlib
import traceback
from typing import Any

from intarsia.blocks import Task
from intarsia.core import ClientError, IntarsiaError


class Stage:
    """Remembers which stage of a step is running, for the error message."""

    name = ""

    @contextlib.contextmanager
    def __call__(self, name: str) -> Any:
        """Begin a stage."""
        self.name = name
        yield


def named_error(error: Exception, task: Task, stage: str) -> ClientError:
    """Return an error that says where a client's step failed."""
    where = f"client '{task.client}', round {task.round}, exchange '{task.exchange}', stage '{stage}'"
    block = getattr(error, "block", "")
    kind = "" if isinstance(error, IntarsiaError) else f"{type(error).__name__}: "
    message = f"{where}{f', block {block!r}' if block else ''}: {kind}{error}"
    return ClientError(message, stage=stage, block=block, details=traceback.format_exc())
