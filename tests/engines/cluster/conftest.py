"""A real cluster for the tests of a module: a scheduler and two workers, as `intarsia cluster up` starts them."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in ("Z", "X")
    except OSError:
        return False


@dataclass(frozen=True)
class Up:
    """A cluster that is up."""

    address: str
    process: subprocess.Popen[str]

    @property
    def engine(self) -> tuple[str, ...]:
        return ("engine.name=dask", f"engine.scheduler={self.address}", "engine.device=cpu")

    @property
    def children(self) -> list[int]:
        pid = self.process.pid
        found = Path(f"/proc/{pid}/task").glob("*/children")
        return sorted(int(child) for file in found for child in file.read_text().split())

    @property
    def workers(self) -> list[int]:
        """The processes of the workers, the youngest last."""
        return [pid for pid in self.children if "spawn_main" in Path(f"/proc/{pid}/cmdline").read_text()]

    def kill_a_worker(self) -> None:
        os.kill(self.workers[-1], signal.SIGKILL)


@pytest.fixture(scope="session")
def up() -> Iterator[Up]:
    command = [sys.executable, "-m", "intarsia", "cluster", "up", "--workers", "2", "--port", "0"]
    path = os.pathsep.join(filter(None, [str(ROOT), str(ROOT / "src"), os.environ.get("PYTHONPATH")]))
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, cwd=ROOT, env={**os.environ, "PYTHONPATH": path}
    ) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        found = re.search(r"tcp://127\.0\.0\.1:\d+", line)
        assert found, line
        cluster = Up(found[0], process)
        yield cluster
        children = cluster.children
        process.send_signal(signal.SIGINT)
        assert process.wait(60) in (0, 130)
        assert len(children) >= 2
        end = time.monotonic() + 30
        while left := [pid for pid in children if alive(pid)]:
            assert time.monotonic() < end, left
            time.sleep(0.05)
