"""Whole pieces of work, spread over a cluster: one a worker, each in a process of its own with a folder to fill."""

from __future__ import annotations

import io
import json
import os
import pickle
import secrets
import shutil
import subprocess
import sys
import tarfile
import tempfile
import traceback
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from intarsia.core import IntarsiaError, SettingsError
from intarsia.engines.cluster.members import (
    PATIENCE,
    Came,
    Cluster,
    ClusterActor,
    Gone,
    Joined,
    Member,
    Tls,
    Unfit,
)
from intarsia.engines.dealing import STRIKES
from intarsia.engines.local.processes import end_with

LOOK = 1.0
"""Seconds that a worker waits for its process before it says that it goes on."""


@dataclass(frozen=True)
class ClusterJob:
    """A function of a folder, and the folder that it fills."""

    name: str
    function: Callable[[Path], object]
    folder: Path


@dataclass(frozen=True)
class Outcome:
    """What came of a job: nothing, or an error by its kind and in words."""

    job: ClusterJob
    kind: str = ""
    message: str = ""


class JobRunner(ClusterActor):
    """Runs one job at a time as a process, which ends with this object: when the run's connection is gone, too."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._scratch: Path | None = None
        self._sent_back = False

    def begin(self, job: bytes, folder: str, token: str) -> None:
        """Begin a job: in its own folder where this machine sees it, else in one that is sent back."""
        self.end()
        self._scratch = Path(tempfile.mkdtemp(prefix="intarsia-job-"))
        (self._scratch / "job").write_bytes(job)
        self._sent_back = not (Path(folder).parent / token).exists()
        place = self._scratch / "folder" if self._sent_back else Path(folder)
        words = [str(self._scratch / "job"), str(place), str(self._scratch / "outcome"), str(os.getpid())]
        command = [sys.executable, "-m", __name__, *words]
        paths = os.pathsep.join(filter(None, sys.path))
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": paths},
        )

    def look(self) -> dict[str, Any] | None:
        """Return what came of the job; None if it goes on."""
        assert self._process is not None
        assert self._scratch is not None
        try:
            code = self._process.wait(LOOK)
        except subprocess.TimeoutExpired:
            return None
        told = self._scratch / "outcome"
        if not told.exists():
            return {"kind": "WorkerDied", "message": f"the process of the run ended by code {code}"}
        outcome: dict[str, Any] = json.loads(told.read_bytes())
        return {**outcome, "folder": self._packed()}

    def end(self) -> None:
        """End the process, if it goes on, and remove what it left."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        if self._scratch is not None:
            shutil.rmtree(self._scratch, ignore_errors=True)
        self._process = self._scratch = None

    def __del__(self) -> None:
        with suppress(Exception):  # the interpreter may be ending
            self.end()

    def _packed(self) -> bytes:
        assert self._scratch is not None
        place, packed = self._scratch / "folder", io.BytesIO()
        if self._sent_back and place.exists():
            with tarfile.open(fileobj=packed, mode="w") as archive:
                archive.add(place, arcname=".")
        return packed.getvalue()


@dataclass
class _Spreading:
    """Jobs that wait, and who has which."""

    cluster: Cluster
    waiting: deque[ClusterJob]
    token: str
    at: dict[Member, ClusterJob] = field(default_factory=dict)
    strikes: Counter[str] = field(default_factory=Counter)

    def run(self) -> Iterator[Outcome]:
        """Let workers do all jobs; yield what came of each."""
        while self.waiting or self.at:
            happening = self.cluster.next(PATIENCE)
            if isinstance(happening, Joined):
                self._begin(happening.member)
            elif isinstance(happening, Came) and happening.member in self.at:
                yield from self._heard(happening)
            elif isinstance(happening, Gone):
                yield from self._gone(happening.address)
            elif isinstance(happening, Unfit):
                raise SettingsError(happening.reason)
            elif happening is None and not self.cluster.connected:
                self._check_scheduler()
            elif happening is None and not self.at:
                raise SettingsError(
                    f"{self.cluster.scheduler} has no worker: start some (dask worker {self.cluster.scheduler})"
                )

    def _check_scheduler(self) -> None:
        """Stop if the scheduler has gone: workers end then, which is the fault of no job."""
        if not self.cluster.alive():
            raise IntarsiaError(
                f"the cluster at {self.cluster.scheduler} has lost its scheduler: start it, and go on"
            )

    def _begin(self, member: Member) -> None:
        from intarsia.engines.cluster.pickled import pickled

        if self.waiting:
            job = self.at[member] = self.waiting.popleft()
            self.cluster.call(member, "begin", pickled(job.function), str(job.folder.absolute()), self.token)

    def _heard(self, came: Came) -> Iterator[Outcome]:
        """Look again at a job that goes on; take what came of one that ended, and begin the next."""
        member = came.member
        if came.error is not None:
            raise IntarsiaError(
                f"worker {member.address}: {type(came.error).__name__}: {came.error}"
            ) from came.error
        if came.answer is None:
            self.cluster.call(member, "look")
            return
        job = self.at.pop(member)
        _unpack(came.answer.pop("folder", b""), job.folder)
        yield Outcome(job, came.answer["kind"], came.answer["message"])
        self._begin(member)

    def _gone(self, address: str) -> Iterator[Outcome]:
        for member in [member for member in self.at if member.address == address]:
            self._check_scheduler()
            job = self.at.pop(member)
            self.strikes[job.name] += 1
            if self.strikes[job.name] < STRIKES:
                self.waiting.appendleft(job)
            else:
                yield Outcome(
                    job, "WorkerDied", f"{STRIKES} workers ended while they ran it, the last: {address}"
                )


def spread(scheduler: str, tls: Tls | None, jobs: Sequence[ClusterJob]) -> Iterator[Outcome]:
    """Let the workers of a cluster do jobs, one each at a time; yield what came of them, as they end.

    Jobs of one call have folders in one place. A job whose worker dies is begun again by another: where workers see
    the folder itself, a run goes on from its last checkpoint there.
    """
    if not jobs:
        return
    place = jobs[0].folder.parent
    place.mkdir(parents=True, exist_ok=True)
    mark = place / f".shared-{secrets.token_hex(8)}"
    mark.touch()
    cluster = Cluster(scheduler, tls, JobRunner)
    try:
        yield from _Spreading(cluster, deque(jobs), mark.name).run()
    finally:
        cluster.close()
        mark.unlink()


def _unpack(archive: bytes, folder: Path) -> None:
    """Put what a job made into its folder."""
    if not archive:
        return
    draft = folder.with_name(f".{folder.name}.draft")
    shutil.rmtree(draft, ignore_errors=True)
    with tarfile.open(fileobj=io.BytesIO(archive)) as packed:
        packed.extractall(draft, filter="data")
    shutil.rmtree(folder, ignore_errors=True)
    draft.rename(folder)


def main(job: str, folder: str, outcome: str, parent: str) -> None:
    """Do a job in this process."""
    end_with(int(parent))
    told = {"kind": "", "message": ""}
    try:
        pickle.loads(Path(job).read_bytes())(Path(folder))  # noqa: S301 - dask itself pickles: trusted clusters alone
    except IntarsiaError as error:
        told = {"kind": type(error).__name__, "message": str(error.__cause__ or error)}
    except Exception as error:  # noqa: BLE001 - whatever it is, it is told by name
        traceback.print_exc()
        told = {"kind": type(error).__name__, "message": f"{type(error).__name__}: {error}"}
    draft = Path(f"{outcome}.draft")
    draft.write_text(json.dumps(told))
    draft.rename(outcome)


if __name__ == "__main__":
    main(*sys.argv[1:])
