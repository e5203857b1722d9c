"""The engine for one machine: worker processes that stay, one thread each."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

import torch

from intarsia.blocks import (
    Address,
    Block,
    ClientError,
    Fold,
    IntarsiaError,
    Refused,
    Task,
    Traffic,
    Update,
    pack,
    unpack,
)
from intarsia.engines.client import ClientRuntime
from intarsia.engines.engine import Engine, Failure, Job, Reply, accept, failed, refused
from intarsia.engines.memory import share
from intarsia.engines.setup import Setup
from intarsia.engines.store import BlockStore
from intarsia.training import tune_allocator


class WorkerDied(IntarsiaError):  # noqa: N818
    """A worker process that ended by itself: killed, or out of memory."""


@dataclass
class _Worker:
    process: BaseProcess
    pipe: Connection
    has: set[str] = field(default_factory=set)
    """Versions that the worker keeps."""
    client: str = ""


class LocalEngine(Engine):
    """Worker processes share the data; blocks go to each worker once a version, sums come back."""

    name = "local"

    def __init__(self, setup: Setup, store: BlockStore, device: str = "cpu", workers: int = 0) -> None:
        setup.population = share(setup.population)
        self.setup = setup
        # Forked workers have torch, models and data at once. Where there is no fork they start afresh.
        can_fork = sys.platform.startswith("linux") and not torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
        method = "fork" if can_fork else "spawn"
        context = multiprocessing.get_context(method)
        _ = setup.templates
        self._workers = [self._start(context, store, device) for _ in range(workers or cores())]

    def exchange(
        self, jobs: Sequence[Job], content: Mapping[str, Block], fold: Fold | None, keep_blocks: bool
    ) -> Iterator[Reply]:
        """Carry the jobs, the longest first, each to the next free worker."""
        queue = deque(sorted(jobs, key=self._cost, reverse=True))
        tasks = {job.task.client: job.task for job in jobs}
        needed = set(content)
        for worker in self._workers:
            begin = {"kind": "begin", "keep": sorted(worker.has & needed), "blocks": keep_blocks}
            self._send(worker, begin | {"merge": fold is not None})
            worker.has &= needed
        busy = [w for w in self._workers if self._give(w, queue, content, fold)]
        while busy:
            for worker in self._ready(busy):
                header, records = self._receive(worker)
                yield _reply(header, records, tasks[worker.client])
                if not self._give(worker, queue, content, fold):
                    busy.remove(worker)
        for worker in self._workers:
            self._send(worker, {"kind": "end"})
        for worker in self._workers:
            header, records = self._receive(worker)
            if fold is not None:
                fold.absorb(header["sums"], Block.from_bytes(records[0]))

    def close(self) -> None:
        """Ask every worker to stop; end those that do not."""
        for worker in self._workers:
            worker.pipe.close()
        end = time.monotonic() + 2
        for worker in self._workers:
            worker.process.join(timeout=max(0.0, end - time.monotonic()))
            if worker.process.is_alive():
                worker.process.kill()
                worker.process.join()

    def _start(self, context: Any, store: BlockStore, device: str) -> _Worker:
        ours, theirs = context.Pipe()
        arguments = (self.setup, store, device, theirs, ours, os.getpid())
        process = context.Process(target=_work, args=arguments, daemon=True, name="intarsia-worker")
        process.start()
        theirs.close()
        return _Worker(process, ours)

    def _cost(self, job: Job) -> int:
        initial = self.setup.template(job.task.client).initial
        samples = sum(self.setup.population.clients[job.task.client].info.samples.values())
        return samples * sum(block.parameters for block in initial.values())

    def _give(
        self, worker: _Worker, queue: deque[Job], content: Mapping[str, Block], fold: Fold | None
    ) -> bool:
        if not queue:
            return False
        job = queue.popleft()
        worker.client = job.task.client
        merged = {} if fold is None else {str(a): a for a in job.task.plan.returned}
        present = {text: fold.present[a].version for text, a in merged.items() if fold}
        planned = {text: fold.planned[a] for text, a in merged.items() if fold}
        missing = {*job.task.versions.values(), *present.values()} - worker.has
        header = {
            "kind": "job",
            "task": job.task.header(),
            "state": job.state,
            "samples": job.samples,
            "present": present,
            "planned": planned,
        }
        self._send(worker, header, [content[version].to_bytes() for version in sorted(missing)])
        worker.has |= missing
        return True

    def _ready(self, busy: Sequence[_Worker]) -> list[_Worker]:
        pipes = wait([worker.pipe for worker in busy])
        return [worker for worker in busy if worker.pipe in pipes]

    def _send(self, worker: _Worker, header: Mapping[str, Any], records: Sequence[bytes] = ()) -> None:
        try:
            worker.pipe.send_bytes(pack(header, records))
        except OSError:
            raise self._dead(worker) from None

    def _receive(self, worker: _Worker) -> tuple[dict[str, Any], list[bytes]]:
        try:
            return unpack(worker.pipe.recv_bytes())
        except (EOFError, OSError):
            raise self._dead(worker) from None

    def _dead(self, worker: _Worker) -> WorkerDied:
        worker.process.join(timeout=5)
        code = worker.process.exitcode
        cause = f"signal {-code}" if code is not None and code < 0 else f"exit code {code}"
        hint = "; often: out of memory, so try fewer workers" if code == -signal.SIGKILL else ""
        return WorkerDied(f"a worker process ended by {cause} while it ran client '{worker.client}'{hint}")


def cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _reply(header: Mapping[str, Any], records: Sequence[bytes], task: Task) -> Reply:
    rows = [Traffic(task.round, task.exchange, task.purpose, task.client, *row) for row in header["traffic"]]
    if header["failure"]:
        return Reply(task.client, traffic=rows, failure=Failure(**header["failure"]))
    update = Update.from_header(header["update"], [Block.from_bytes(record) for record in records])
    return Reply(task.client, update, header["state"], rows, header["seconds"])


def _work(
    setup: Setup, store: BlockStore, device: str, pipe: Connection, parent_end: Connection, parent: int
) -> None:
    """Be a worker: answer jobs until the pipe closes."""
    parent_end.close()
    _end_with(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)
    tune_allocator()
    worker = _WorkerSide(setup, ClientRuntime(setup, store, device), pipe)
    try:
        while True:
            worker.answer(*unpack(pipe.recv_bytes()))
    except (EOFError, OSError):
        os._exit(0)


class _WorkerSide:
    """The worker's side of the pipe: blocks it keeps, and the sums of the present exchange."""

    def __init__(self, setup: Setup, runtime: ClientRuntime, pipe: Connection) -> None:
        self.setup = setup
        self.runtime = runtime
        self.pipe = pipe
        self.blocks: dict[str, Block] = {}
        self.present: dict[Address, Block] = {}
        self.planned: dict[Address, int] = {}
        self.keep_blocks = False
        self.fold: Fold | None = None

    def answer(self, header: Mapping[str, Any], records: Sequence[bytes]) -> None:
        """Do what a message asks for."""
        if header["kind"] == "begin":
            self.blocks = {version: self.blocks[version] for version in header["keep"]}
            self.keep_blocks = header["blocks"]
            self.fold = self._fold() if header["merge"] else None
        elif header["kind"] == "job":
            self._job(header, records)
        else:
            sums, tensors = self.fold.dump() if self.fold else ({}, Block({}))
            self.pipe.send_bytes(pack({"sums": sums}, [tensors.to_bytes()]))

    def _fold(self) -> Fold:
        self.present, self.planned = {}, {}
        return Fold(self.setup.method.merge, self.present, self.planned)

    def _job(self, header: Mapping[str, Any], records: Sequence[bytes]) -> None:
        for block in (Block.from_bytes(record) for record in records):
            self.blocks[block.version] = block
        for text, version in header["present"].items():
            self.present[Address.parse(text)] = self.blocks[version]
            self.planned[Address.parse(text)] = header["planned"][text]
        task = Task.from_header(header["task"])
        reply, blocks = self._run(Job(task, header["state"], header["samples"]))
        self.pipe.send_bytes(pack(reply, blocks))

    def _run(self, job: Job) -> tuple[dict[str, Any], list[bytes]]:
        try:
            answer = self.runtime.run(job.task, job.state, self.blocks.__getitem__)
            update = answer.update
            full = accept(self.setup, self.fold, job, update)
        except ClientError as error:
            return _as_json(failed(job.task.client, error)), []
        except Refused as error:
            return _as_json(refused(update, error)), []
        kept = full if self.keep_blocks else full.without_blocks()
        reply = Reply(update.client, kept, answer.state, update.traffic(), answer.seconds)
        return _as_json(reply), [record.to_bytes() for record in kept.records()]


def _as_json(reply: Reply) -> dict[str, Any]:
    return {
        "failure": reply.failure.to_json() if reply.failure else None,
        "update": reply.update.header() if reply.update else None,
        "state": reply.state,
        "traffic": [[r.block, r.group, r.direction, r.bytes, r.envelope] for r in reply.traffic],
        "seconds": reply.seconds,
    }


def _end_with(parent: int) -> None:
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
