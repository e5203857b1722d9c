"""What the processes of an engine have in common: how they end."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import sys
import threading
from multiprocessing.process import BaseProcess


def cause_of(process: BaseProcess) -> str:
    """Return what ended a process, and what often does."""
    process.join(timeout=5)
    code = process.exitcode
    cause = f"signal {-code}" if code is not None and code < 0 else f"exit code {code}"
    hint = "; often: out of memory, so try fewer workers" if code == -signal.SIGKILL else ""
    return f"{cause}{hint}"


def end_with(parent: int) -> None:
    """End this process when its parent does, however that happens."""
    if sys.platform.startswith("linux"):
        set_parent_death_signal = 1
        ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)
        return
    ancestor = multiprocessing.parent_process()
    if ancestor is not None:
        threading.Thread(target=lambda: (ancestor.join(), os._exit(1)), daemon=True).start()
