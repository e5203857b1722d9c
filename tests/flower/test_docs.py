"""docs/flower.md as a new user follows it: its own commands, in its own order, on ports that are free."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="needs Flower: pip install 'intarsia[flower]'")

import intarsia
from intarsia.flower.server.app import ENDED
from intarsia.flower.superexec import HOST, free_port
from tests.flower.conftest import wait_until

pytestmark = pytest.mark.flower_slow
PAGE = Path(__file__).parents[2] / "docs" / "flower.md"
STAYS = ("intarsia flower link", "intarsia site", "intarsia flower node")


def blocks() -> list[str]:
    """Return the commands of the page's second part, block by block."""
    part = PAGE.read_text().split("\n## 2. ")[1].split("\n## ")[0]
    fenced = re.findall(r"^```(\w*)\n(.*?)\n```$", part, re.DOTALL | re.MULTILINE)
    return [text for language, text in fenced if language == "bash"]


@pytest.fixture
def shell() -> Iterator[Shell]:
    with tempfile.TemporaryDirectory(prefix="int-") as folder:
        shell = Shell(Path(folder))
        try:
            yield shell
        finally:
            shell.close()


class Shell:
    """Runs blocks of commands; those that stay go to the background, each with a log."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.port, self.stay = folder, free_port(), {}
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        self.environment = {**os.environ, "PATH": path, "FLWR_HOME": str(folder / "flwr")}

    def run(self, block: str) -> str:
        """Run a block in the folder that the page speaks of; return what it says."""
        ours = block.replace("intarsia flower link --certs certs", f"{block} --port {self.port}")
        ours = ours.replace("127.0.0.1:8000", f"{HOST}:{self.port}")
        inside = self.folder / "federation"
        where = inside if inside.exists() else self.folder
        if block.startswith(STAYS):
            for site in ("north", "south") if "north" in block else ("",):
                self._leave(ours.replace("north", site), where)
            return ""
        done = subprocess.run(
            ["bash", "-ec", ours],
            cwd=where,
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{ours}\n{done.stdout}{done.stderr}"
        return done.stdout

    def _leave(self, command: str, where: Path) -> None:
        log = (self.folder / f"{len(self.stay)}.log").open("wb")
        self.stay[command] = subprocess.Popen(
            ["bash", "-c", f"exec {command}"],
            cwd=where,
            env=self.environment,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        log.close()

    def close(self) -> None:
        """End everything that stayed."""
        for process in self.stay.values():
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def test_the_commands_of_the_page_make_a_federation(shell):
    said = ""
    for block in blocks():
        said = shell.run(block)
        if block.startswith("intarsia flower link"):
            wait_until(lambda: "startup complete" in (shell.folder / "0.log").read_text(), 60)
    assert ENDED in said.splitlines()
    run = intarsia.open_run(shell.folder / "federation" / "runs" / "federation")
    assert run.summary["evaluated"] == 4
    assert run.summary["accuracy"]["mean"] > 0.8
    assert len(shell.stay) == 5
    assert "location = /v1/fleet/pull-messages" in (shell.folder / "federation" / "intarsia.conf").read_text()
