"""Wall time, CPU time of a whole process tree, foreign load and memory, from Linux' /proc."""

from __future__ import annotations

import os
import time
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

TICK = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Measurement:
    """One stretch of rounds of one contestant."""

    wall: float
    cpu: float
    """Seconds of CPU of the contestant's whole process tree."""
    foreign: float
    """Cores that were busy with anything else, on average."""


def processes() -> dict[int, tuple[int, float]]:
    """Return the parent and the CPU seconds, ended children included, of every process."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except (FileNotFoundError, ProcessLookupError):
                continue
            found[int(entry.name)] = (int(fields[1]), sum(map(int, fields[11:15])) / TICK)
    return found


def tree(root: int, known: dict[int, tuple[int, float]]) -> list[int]:
    """Return a process and all that descend from it."""
    children = defaultdict(list)
    for pid, (parent, _) in known.items():
        children[parent].append(pid)
    members = [root]
    for pid in members:
        members += children[pid]
    return members


def born(pid: int) -> str:
    """Return when a process was started, or nothing if there is none of this number; numbers are given anew."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (FileNotFoundError, ProcessLookupError):
        return ""


def tree_cpu(root: int) -> float:
    """Return the CPU seconds that a process and its descendants have used so far."""
    known = processes()
    return sum(known[pid][1] for pid in tree(root, known) if pid in known)


def busy_cpu() -> float:
    """Return the seconds of CPU that the machine has spent on anything, time taken by other guests included."""
    user, nice, system, _, _, irq, softirq, steal = map(
        int, Path("/proc/stat").read_text().splitlines()[0].split()[1:9]
    )
    return (user + nice + system + irq + softirq + steal) / TICK


def tree_memory(root: int) -> int:
    """Return the bytes that a process tree holds; a page that several share is counted once."""
    total = 0
    for pid in tree(root, processes()):
        try:
            text = Path(f"/proc/{pid}/smaps_rollup").read_text()
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue
        total += sum(int(line.split()[1]) * 1024 for line in text.splitlines() if line.startswith("Pss:"))
    return total


class Watch:
    """Measures from its making until `stop`."""

    def __init__(self, root: int, fresh: bool = False) -> None:
        self.root = root
        self.cpu, self.own = 0.0 if fresh else tree_cpu(root), self._apart()
        self.busy, self.start = busy_cpu(), time.perf_counter()

    def stop(self, wall: float | None = None) -> Measurement:
        """Return what was used since; the contestant may know its wall time better."""
        passed = time.perf_counter() - self.start
        busy, cpu = busy_cpu() - self.busy, tree_cpu(self.root) - self.cpu
        foreign = max(0.0, busy - cpu - (self._apart() - self.own)) / passed
        return Measurement(passed if wall is None else wall, cpu, foreign)

    def _apart(self) -> float:
        """Return the CPU seconds of this process, where it is not itself what is watched."""
        return 0.0 if self.root == os.getpid() else time.process_time()
