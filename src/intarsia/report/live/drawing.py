"""Pages are drawn in a process of their own: it may take its time and memory, and what it breaks is only itself."""

from __future__ import annotations

import html
import multiprocessing
import os
import signal
import sys
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from pathlib import Path
from threading import Lock
from typing import Any

from intarsia.core import IntarsiaError
from intarsia.core.text import harmless
from intarsia.report.elements import html_section

PATIENCE = 600.0
"""How many seconds a page may take."""
NICE = 10
"""Runs come first: how far drawing stands back."""
LOADED = ["intarsia.report.live.drawing", "intarsia.report", "intarsia.experiment"]


@dataclass(frozen=True)
class Drawn:
    """The sections of a page, as HTML, under a title; or why there are none."""

    title: str
    lead: str
    body: str
    problem: str = ""
    seconds: float = 0.0
    """How long a core worked on it."""


class Draughtsman:
    """Draws pages, one at a time."""

    def __init__(self) -> None:
        self._context = _context()
        self._one = Lock()

    def prepare(self) -> None:
        """Begin to import what drawing takes, in the process that others are forked from."""
        if self._context.get_start_method() == "forkserver":
            forkserver.ensure_running()

    def draw(self, folders: Sequence[Path]) -> Drawn:
        """Return the page of some runs."""
        with self._one:
            return self._drawn(folders)

    def _drawn(self, folders: Sequence[Path]) -> Drawn:
        mine, other = self._context.Pipe(duplex=False)
        process = self._context.Process(target=_work, args=(other, folders), daemon=True)
        with mine:
            try:
                with other:
                    process.start()
                if not mine.poll(PATIENCE):
                    return failed(folders, f"drawing took longer than {PATIENCE:.0f} s")
                found: Drawn = mine.recv()
                return found
            except (EOFError, OSError) as error:
                return failed(folders, f"the process that draws it has ended ({error or 'without a word'})")
            finally:
                if process.pid is not None:
                    process.kill()
                    process.join()


def _context() -> Any:
    """Return how processes are started: forked from one that has imported everything, where there is such."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(LOADED)
    return context


def failed(folders: Sequence[Path], problem: str) -> Drawn:
    """Return a page that says what went wrong with drawing it."""
    names = ", ".join(path.name for path in folders)
    text = html.escape(harmless(f"{names}: {problem}"))
    told = f"<p>{text}</p><p>It is tried again when its folder changes.</p>"
    return Drawn(harmless(names), "", html_section("This cannot be drawn", told), harmless(problem))


def _work(answers: Connection, folders: Sequence[Path]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if hasattr(os, "nice"):
        os.nice(NICE)
    with answers, open(os.devnull, "w") as nowhere:
        sys.stdout = sys.stderr = nowhere
        answers.send(replace(drawn(folders), seconds=time.process_time()))


def drawn(folders: Sequence[Path]) -> Drawn:
    """Draw the sections of a page about some runs; whatever is wrong with a folder is said by name."""
    from intarsia.core.threads import one_thread
    from intarsia.experiment import open_run
    from intarsia.report.live.page_file import lead_of, title_of
    from intarsia.report.page import page_parts
    from intarsia.report.run_view import views_of

    try:
        with warnings.catch_warnings(), one_thread():
            warnings.simplefilter("ignore")
            views = views_of([open_run(path) for path in folders])
            body = "".join(html_section(name, content) for name, content in page_parts(views))
            return Drawn(harmless(title_of(views)), html.escape(harmless(lead_of(views))), body)
    except (IntarsiaError, OSError) as error:
        return failed(folders, str(error))
    except Exception as error:  # noqa: BLE001 - whatever a damaged folder leads to, the others are shown
        return failed(folders, f"its folder is damaged, or not whole yet ({type(error).__name__}: {error})")
