"""The command line in a process of its own, forked from one that has imported everything: a second saved a call."""

from __future__ import annotations

import multiprocessing
import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

LOADED = ["intarsia.api", "intarsia.cli.app", "intarsia.report", "intarsia.papers", "intarsia.tuning"]
PATIENCE = 120
"""Seconds that a command may take."""


@dataclass(frozen=True)
class Called:
    """What a command printed, and how it ended."""

    stdout: str
    stderr: str
    returncode: int | None


def call(*arguments: str, cwd: Path, code: int = 0) -> Called:
    """Call the command line in a folder, as with a wide terminal; check what it ends with."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(LOADED)
    with tempfile.TemporaryDirectory() as place:
        out, err = Path(place) / "out", Path(place) / "err"
        process = context.Process(target=_call, args=(arguments, str(cwd), str(out), str(err)))
        with mock.patch.dict(os.environ, {"COLUMNS": "200", "OMP_NUM_THREADS": "1"}):
            process.start()  # the first one starts the server that the others are forked from
        process.join(PATIENCE)
        process.kill()
        process.join()
        done = Called(out.read_text(), err.read_text(), process.exitcode)
    assert done.returncode == code, done.stdout + done.stderr
    return done


def _call(arguments: Sequence[str], cwd: str, out: str, err: str) -> None:
    os.chdir(cwd)
    for number, path in ((1, out), (2, err)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT), number)
    sys.argv = ["intarsia", *arguments]
    from intarsia.cli import main

    main()
