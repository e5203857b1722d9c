"""The engine for one machine: worker processes that stay, one thread each."""

from __future__ import annotations

import gc
import math
import multiprocessing
import os
import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from intarsia.blocks import Address, Block, BlockStore, Fold, Task, Traffic, Update
from intarsia.clients import Answer, ClientRuntime
from intarsia.core import ClientError, Refused
from intarsia.engines.engine import Engine, Failure, Job, Reply, accept, failed, refused
from intarsia.engines.local.helpers import side_by_side
from intarsia.engines.local.mailbox import Mailbox, memory
from intarsia.engines.local.memory import share
from intarsia.engines.local.processes import WorkerDied, cause_of, end_with
from intarsia.setup import Setup
from intarsia.training import tune_allocator
from intarsia.trust.guarding import guard_on_one_machine

if TYPE_CHECKING:
    from intarsia.trust.guard import Guard

T = TypeVar("T")
R = TypeVar("R")

STOP = "stop"
"""What a worker is told last: a pipe that closes says so too, but not while workers of another engine hold its end."""


@dataclass
class _Worker:
    process: BaseProcess
    box: Mailbox
    has: set[str] = field(default_factory=set)
    """Versions that the worker keeps."""
    clients: deque[str] = field(default_factory=deque)
    """Whose replies are still to come, in this order."""
    latest: int = 0
    """How many of these it was given last."""
    begun: bool = False
    """Whether it takes part in the present exchange."""
    ended: bool = False
    """Whether it knows that nothing more will come in this exchange."""

    def given(self, group: Sequence[Job], blocks: Collection[str]) -> None:
        """Note what the worker was given."""
        self.clients.extend(job.task.client for job in group)
        self.latest = len(group)
        self.has.update(blocks)


@dataclass
class _Work:
    """What one exchange asks of the workers."""

    queue: deque[list[Job]]
    content: Mapping[str, Block]
    fold: Fold | None
    keep_blocks: bool
    ahead: bool = True
    """Whether jobs can be given to workers that are busy."""


class LocalEngine(Engine):
    """Worker processes share the data; blocks go to each worker once a version, sums come back."""

    name = "local"

    def __init__(
        self,
        setup: Setup,
        store: BlockStore,
        device: str = "cpu",
        workers: int = 0,
        guard: Guard | None = None,
    ) -> None:
        self.setup = setup
        self._guard = guard or guard_on_one_machine(setup.secure_sums, store.folder.parent)
        # Forked workers have torch, models and data at once. Where there is no fork they start afresh.
        linux = sys.platform.startswith("linux")
        can_fork = linux and not torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
        # Later, in the midst of a run, torch has threads of its own where there is a graphics card.
        self._can_fork_later = linux and not torch.cuda.is_available()
        method = "fork" if can_fork else "spawn"
        context = multiprocessing.get_context(method)
        self._workers = [self._start(context, store, device) for _ in range(workers or cores())]

    def exchange(
        self, jobs: Sequence[Job], content: Mapping[str, Block], fold: Fold | None, keep_blocks: bool
    ) -> Iterator[Reply]:
        """Carry the jobs, the longest first, those that go together as one, each to the next free worker."""
        work = _Work(self._groups(jobs), content, fold, keep_blocks)
        tasks = {job.task.client: job.task for job in jobs}
        for worker in self._workers:
            worker.begun = worker.ended = False
        busy = [worker for worker in self._workers if self._give(worker, work)]
        for worker in busy:
            self._give_ahead(worker, work)
        while busy:
            for worker in self._ready(busy):
                header, blocks = self._receive(worker)
                if "sums" in header:
                    if fold is not None:
                        fold.absorb(header["sums"], blocks[0])
                    worker.box.release()
                    busy.remove(worker)
                    continue
                for reply in header["replies"]:
                    yield _reply(reply, blocks, tasks[worker.clients.popleft()])
                if worker.clients or self._give(worker, work):
                    self._give_ahead(worker, work)
                elif not worker.ended:
                    self._send(worker, {"kind": "end"})
                    worker.ended = True

    def each(self, function: Callable[[T], R], items: Sequence[T]) -> list[R]:
        """Do pieces of the server's work in as many processes as there are workers, which have nothing to do now."""
        processes = min(len(self._workers), len(items))
        if processes < 2 or not self._can_fork_later:
            return super().each(function, items)
        return side_by_side(function, items, processes)

    def close(self) -> None:
        """Ask every worker to stop; end those that do not."""
        for worker in self._workers:
            with suppress(OSError):  # it died before
                worker.box.send({"kind": STOP})
            worker.box.close()
        end = time.monotonic() + 2
        for worker in self._workers:
            worker.process.join(timeout=max(0.0, end - time.monotonic()))
            if worker.process.is_alive():
                worker.process.kill()
                worker.process.join()

    def _start(self, context: Any, store: BlockStore, device: str) -> _Worker:
        ours, theirs = context.Pipe()
        down, up = (memory(), memory()) if context.get_start_method() == "fork" else (None, None)
        arguments = (self.setup, store, device, self._guard, Mailbox(theirs, up, down), ours, os.getpid())
        process = context.Process(target=_work, args=arguments, daemon=True, name="intarsia-worker")
        process.start()
        theirs.close()
        return _Worker(process, Mailbox(ours, down, up))

    def _cost(self, job: Job) -> int:
        initial = self.setup.template(job.task.client).initial
        samples = sum(self.setup.population.clients[job.task.client].info.samples.values())
        return samples * sum(block.parameters for block in initial.values())

    def _groups(self, jobs: Sequence[Job]) -> deque[list[Job]]:
        """Put together what trains side by side, like lengths with like, and no more than a worker's share."""
        share = math.ceil(len(jobs) / len(self._workers))
        groups: list[list[Job]] = []
        latest: dict[Hashable, list[Job]] = {}
        for job in sorted(jobs, key=self._cost, reverse=True):
            key, most = self.setup.stack(job.task)
            if key not in latest or len(latest[key]) >= min(most, share):
                latest[key] = []
                groups.append(latest[key])
            latest[key].append(job)
        return deque(sorted(groups, key=lambda group: sum(map(self._cost, group)), reverse=True))

    def _give(self, worker: _Worker, work: _Work) -> bool:
        """Give a worker that waits the next jobs, with the blocks that they need."""
        if not work.queue:
            return False
        begin = {} if worker.begun else {"begin": self._begin(worker, work)}
        group = work.queue.popleft()
        message, missing = self._message(worker, group, work)
        worker.given(group, missing)
        worker.ended = not work.queue
        blocks = [work.content[version] for version in missing]
        self._send(worker, {**begin, **message, "end": worker.ended}, blocks)
        return True

    def _give_ahead(self, worker: _Worker, work: _Work) -> None:
        """Give a worker that is busy its next jobs, so that it need not wait; the last ones go to who is free first."""
        if not work.ahead or len(worker.clients) > worker.latest or len(work.queue) <= len(self._workers):
            return
        message, missing = self._message(worker, work.queue[0], work)
        try:
            work.ahead = not missing and worker.box.send_ahead({**message, "end": False})
        except OSError:
            raise self._dead(worker) from None
        if work.ahead:
            worker.given(work.queue.popleft(), missing)

    def _begin(self, worker: _Worker, work: _Work) -> dict[str, Any]:
        worker.begun = True
        worker.has &= work.content.keys()
        return {"keep": sorted(worker.has), "blocks": work.keep_blocks, "merge": work.fold is not None}

    def _message(
        self, worker: _Worker, group: Sequence[Job], work: _Work
    ) -> tuple[dict[str, Any], list[str]]:
        """Return what a worker is told of jobs, and the versions that it lacks."""
        fold = work.fold
        returned = {} if fold is None else {str(a): a for job in group for a in job.task.plan.returned}
        present = {text: fold.present[a].version for text, a in returned.items() if fold}
        planned = {text: fold.planned[a] for text, a in returned.items() if fold}
        versions = {version for job in group for version in job.task.versions.values()}
        missing = sorted(versions.union(present.values()) - worker.has)
        jobs = [{"task": job.task.header(), "state": job.state, "samples": job.samples} for job in group]
        header = {"kind": "jobs", "jobs": jobs, "present": present, "planned": planned, "versions": missing}
        return header, missing

    def _ready(self, busy: Sequence[_Worker]) -> list[_Worker]:
        pipes = wait([worker.box.pipe for worker in busy])
        return [worker for worker in busy if worker.box.pipe in pipes]

    def _send(self, worker: _Worker, header: Mapping[str, Any], blocks: Sequence[Block] = ()) -> None:
        try:
            worker.box.send_large(header, blocks)
        except OSError:
            raise self._dead(worker) from None

    def _receive(self, worker: _Worker) -> tuple[dict[str, Any], list[Block]]:
        try:
            return worker.box.receive()
        except (EOFError, OSError):
            raise self._dead(worker) from None

    def _dead(self, worker: _Worker) -> WorkerDied:
        whose = " and ".join(f"'{client}'" for client in worker.clients)
        return WorkerDied(f"a worker process that ran client {whose} ended by {cause_of(worker.process)}")


def shared(setup: Setup) -> Setup:
    """Return the setup with its data in memory that workers share: let go of the one before, or there are two."""
    if setup.population.on_demand:  # the workers make it
        return setup
    return replace(setup, population=share(setup.population))


def cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _reply(header: Mapping[str, Any], records: Sequence[Block], task: Task) -> Reply:
    rows = [Traffic(task.round, task.exchange, task.purpose, task.client, *row) for row in header["traffic"]]
    if header["failure"]:
        return Reply(task.client, traffic=rows, failure=Failure(**header["failure"]))
    update = Update.from_header(header["update"], records)
    return Reply(task.client, update, header["state"], rows, header["seconds"])


def _work(
    setup: Setup,
    store: BlockStore,
    device: str,
    guard: Guard | None,
    box: Mailbox,
    parent_end: Connection,
    parent: int,
) -> None:
    """Be a worker: answer jobs until the pipe closes."""
    parent_end.close()
    end_with(parent)
    for number in (signal.SIGINT, signal.SIGTERM):  # the process that started this one ends it
        signal.signal(number, signal.SIG_IGN)
    torch.set_num_threads(1)
    tune_allocator()
    gc.freeze()  # what the parent had stays: to look through it again and again takes time, and copies its pages
    worker = _WorkerSide(setup, ClientRuntime(setup, store, device, guard), box)
    with suppress(EOFError, OSError):  # that is how it ends where the other side is gone
        while worker.answer(*box.receive()):
            pass
    os._exit(0)


class _WorkerSide:
    """The worker's side of the pipe: blocks it keeps, and the sums of the present exchange."""

    def __init__(self, setup: Setup, runtime: ClientRuntime, box: Mailbox) -> None:
        self.setup = setup
        self.runtime = runtime
        self.box = box
        self.blocks: dict[str, Block] = {}
        self.present: dict[Address, Block] = {}
        self.planned: dict[Address, int] = {}
        self.keep_blocks = False
        self.fold: Fold | None = None

    def answer(self, header: Mapping[str, Any], blocks: Sequence[Block]) -> bool:
        """Do what a message asks for; return whether more may come."""
        if header["kind"] == STOP:
            return False
        if "begin" in header:
            self._begin(header["begin"])
        if header["kind"] == "jobs":
            self._jobs(header, blocks)
        if header["kind"] == "end" or header["end"]:
            sums, tensors = self.fold.dump() if self.fold else ({}, Block({}))
            self.box.send_large({"sums": sums}, [tensors])
        return True

    def _begin(self, header: Mapping[str, Any]) -> None:
        self.blocks = {version: self.blocks[version] for version in header["keep"]}
        self.keep_blocks = header["blocks"]
        self.fold = self._fold() if header["merge"] else None

    def _fold(self) -> Fold:
        self.present, self.planned = {}, {}
        return self.setup.fold(self.present, self.planned)

    def _jobs(self, header: Mapping[str, Any], blocks: Sequence[Block]) -> None:
        for version, block in zip(header["versions"], blocks, strict=True):
            self.blocks[version] = block.copy(version)
        self.box.release()
        for text, version in header["present"].items():
            self.present[Address.parse(text)] = self.blocks[version]
            self.planned[Address.parse(text)] = header["planned"][text]
        jobs = [Job(Task.from_header(j["task"]), j["state"], j["samples"]) for j in header["jobs"]]
        tasks = [(job.task, job.state) for job in jobs]
        answers = self.runtime.run_together(tasks, self.blocks.__getitem__)
        self._send_replies(self._reply(job, answer) for job, answer in zip(jobs, answers, strict=True))

    def _send_replies(self, replies: Iterable[tuple[dict[str, Any], list[Block]]]) -> None:
        """Send replies in their order, those without tensors as one message: every message wakes the other side."""
        waiting: list[dict[str, Any]] = []
        for reply, blocks in replies:
            if blocks and waiting:
                self.box.send({"replies": waiting})
                waiting = []
            if blocks:
                self.box.send({"replies": [reply]}, blocks)
            else:
                waiting.append(reply)
        if waiting:
            self.box.send({"replies": waiting})

    def _reply(self, job: Job, answer: Answer | ClientError) -> tuple[dict[str, Any], list[Block]]:
        if isinstance(answer, ClientError):
            return _as_json(failed(job.task.client, answer)), []
        update = answer.update
        try:
            full = accept(self.setup, self.fold, job, update)
        except ClientError as error:
            return _as_json(failed(job.task.client, error)), []
        except Refused as error:
            return _as_json(refused(update, error)), []
        kept = full if self.keep_blocks else full.without_blocks()
        reply = Reply(update.client, kept, answer.state, update.traffic(), answer.seconds)
        return _as_json(reply), kept.records()


def _as_json(reply: Reply) -> dict[str, Any]:
    return {
        "failure": reply.failure.to_json() if reply.failure else None,
        "update": reply.update.header() if reply.update else None,
        "state": reply.state,
        "traffic": [[r.block, r.group, r.direction, r.bytes, r.envelope] for r in reply.traffic],
        "seconds": reply.seconds,
    }
