"""The engine for one machine: worker processes that stay, one thread each."""

from __future__ import annotations

import gc
import math
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from intarsia.blocks import Block, BlockStore, Fold
from intarsia.clients import ClientRuntime
from intarsia.engines.dealing import DIED, Dealing, Lane, dealt
from intarsia.engines.engine import Engine, Failure, Job, Reply
from intarsia.engines.local.helpers import side_by_side
from intarsia.engines.local.mailbox import Mailbox, memory
from intarsia.engines.local.memory import share
from intarsia.engines.local.processes import cause_of, end_with
from intarsia.engines.replies import Told, WorkerSide
from intarsia.setup import Setup
from intarsia.training import return_freed_memory, tune_allocator
from intarsia.trust.guarding import guard_on_one_machine

if TYPE_CHECKING:
    from intarsia.trust.guard import Guard

T = TypeVar("T")
R = TypeVar("R")

STOP = "stop"
"""What a worker is told last: a pipe that closes says so too, but not while workers of another engine hold its end."""


@dataclass(eq=False)
class _Worker(Lane):
    process: BaseProcess = field(kw_only=True)
    box: Mailbox = field(kw_only=True)


@dataclass
class _Work(Dealing):
    """What one exchange asks of the workers."""

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
        before_fork: Callable[[], object] = lambda: None,
    ) -> None:
        self.setup = setup
        self._guard = guard or guard_on_one_machine(setup.secure_sums, store.folder.parent)
        self._about = (store, device)
        self._before_fork = before_fork
        # Forked workers have torch, models and data at once. Where there is no fork they start afresh.
        linux = sys.platform.startswith("linux")
        can_fork = linux and not torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
        # Later, in the midst of a run, torch has threads of its own where there is a graphics card.
        self._can_fork_later = linux and not torch.cuda.is_available()
        self._deaths: list[Failure] = []
        return_freed_memory()
        self._workers = [self._start(can_fork) for _ in range(workers or cores())]

    def exchange(
        self, jobs: Sequence[Job], content: Mapping[str, Block], fold: Fold | None, keep_blocks: bool
    ) -> Iterator[Reply]:
        """Carry the jobs, the longest first, those that go together as one, each to the next free worker."""
        self._replace_dead()
        share = math.ceil(len(jobs) / len(self._workers))
        work = _Work(self.setup, dealt(self.setup, jobs, share), content, fold, keep_blocks)
        busy = self._deal(work, [])
        while busy:
            for worker in self._ready(busy):
                try:
                    header, blocks = worker.box.receive()
                except (EOFError, OSError):
                    yield from self._died(worker, work)
                    busy.remove(worker)
                    busy += self._deal(work, busy)
                    continue
                replies = list(work.replies(worker, header, blocks))
                if "sums" in header:
                    if fold is not None:
                        fold.absorb(header["sums"], blocks[0])
                    worker.finish()
                    worker.box.release()
                    busy.remove(worker)
                    busy += self._deal(work, busy)
                else:
                    self._go_on(worker, work)
                yield from replies

    def happened(self) -> list[Failure]:
        """Return which workers died since this was last asked."""
        deaths, self._deaths = self._deaths, []
        return deaths

    def each(self, function: Callable[[T], R], items: Sequence[T]) -> list[R]:
        """Do pieces of the server's work in as many processes as there are workers, which have nothing to do now."""
        processes = min(len(self._workers), len(items))
        if processes < 2 or not self._can_fork_later:
            return super().each(function, items)
        return side_by_side(function, items, processes, self._helper_died)

    def _helper_died(self, message: str) -> None:
        self._deaths.append(Failure(DIED, "", "server", "", message))

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

    def _start(self, fork: bool) -> _Worker:
        context: Any = multiprocessing.get_context("fork" if fork else "spawn")
        ours, theirs = context.Pipe()
        down, up = (memory(), memory()) if fork else (None, None)
        box = Mailbox(theirs, up, down)
        arguments = (self.setup, *self._about, self._guard, box, ours, os.getpid())
        process = context.Process(target=_work, args=arguments, daemon=True, name="intarsia-worker")
        process.start()
        theirs.close()
        return _Worker(process=process, box=Mailbox(ours, down, up))

    def _replace_dead(self) -> None:
        """Start anew what died while nothing was asked of it."""
        for worker in self._workers:
            if not worker.process.is_alive():
                message = f"{_death_of(worker)} while it had nothing to do; another is started"
                self._deaths.append(Failure(DIED, "", "worker", "", message))
                self._replace(worker)

    def _died(self, worker: _Worker, work: _Work) -> list[Reply]:
        """Put another worker in the place of one that died; return the replies of clients that are left out for it."""
        event, replies = work.died(worker, _death_of(worker))
        self._deaths.append(event)
        self._replace(worker)
        return replies

    def _replace(self, worker: _Worker) -> None:
        self._before_fork()
        worker.box.close()
        self._workers[self._workers.index(worker)] = self._start(self._can_fork_later)

    def _deal(self, work: _Work, busy: Sequence[_Worker]) -> list[_Worker]:
        """Give jobs to every worker that has none; return who got some."""
        waiting = [worker for worker in self._workers if worker not in busy]
        left = range(len(waiting))[::-1]
        given = [
            worker for worker, others in zip(waiting, left, strict=True) if self._give(worker, work, others)
        ]
        for worker in given:
            self._give_ahead(worker, work)
        return given

    def _go_on(self, worker: _Worker, work: _Work) -> None:
        """Give a worker that answered its next jobs, or ask for its sums."""
        if worker.pending or self._give(worker, work):
            self._give_ahead(worker, work)
        elif not worker.ended:
            self._send(worker, {"kind": "end"})
            worker.ended = True

    def _give(self, worker: _Worker, work: _Work, others: int = 0) -> bool:
        """Give a worker that waits the next jobs, with the blocks that they need; then as many others get some."""
        if (worker.begun and worker.ended) or not work.queue:
            return False
        begin = work.begin(worker)
        group = work.queue.popleft()
        message, missing = work.message(worker, group)
        worker.given(group, missing)
        worker.ended = len(work.queue) <= others
        blocks = [work.content[version] for version in missing]
        self._send(worker, {**begin, **message, "end": worker.ended}, blocks)
        return True

    def _give_ahead(self, worker: _Worker, work: _Work) -> None:
        """Give a worker that is busy its next jobs, so that it need not wait; the last ones go to who is free first."""
        if worker.ended or not work.ahead or len(worker.pending) > 1 or len(work.queue) <= len(self._workers):
            return
        message, missing = work.message(worker, work.queue[0])
        try:
            work.ahead = not missing and worker.box.send_ahead({**message, "end": False})
        except OSError:
            return  # it died: that is noticed when its answer is read
        if work.ahead:
            worker.given(work.queue.popleft(), missing)

    def _ready(self, busy: Sequence[_Worker]) -> list[_Worker]:
        pipes = wait([worker.box.pipe for worker in busy])
        return [worker for worker in busy if worker.box.pipe in pipes]

    def _send(self, worker: _Worker, header: Mapping[str, Any], blocks: Sequence[Block] = ()) -> None:
        with suppress(OSError):  # it died: that is noticed when its answer is read
            worker.box.send_large(header, blocks)


def _death_of(worker: _Worker) -> str:
    return f"a worker process ended by {cause_of(worker.process)}"


def shared(setup: Setup) -> Setup:
    """Return the setup with its data in memory that workers share: let go of the one before, or there are two."""
    if setup.population.on_demand:  # the workers make it
        return setup
    return replace(setup, population=share(setup.population))


def cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


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
    worker = _AtPipe(WorkerSide(setup, ClientRuntime(setup, store, device, guard)), box)
    with suppress(EOFError, OSError):  # that is how it ends where the other side is gone
        while worker.answer(*box.receive()):
            pass
    os._exit(0)


class _AtPipe:
    """The worker's side of the pipe."""

    def __init__(self, side: WorkerSide, box: Mailbox) -> None:
        self.side = side
        self.box = box

    def answer(self, header: Mapping[str, Any], blocks: Sequence[Block]) -> bool:
        """Do what a message asks for; return whether more may come."""
        if header["kind"] == STOP:
            return False
        if "begin" in header:
            self.side.begin(header["begin"])
        replies: list[dict[str, Any]] = []
        if header["kind"] == "jobs":
            self.side.take(header["versions"], blocks)
            self.box.release()
            replies = self._send_replies(self.side.jobs(header))
        if header["kind"] == "end" or header["end"]:
            sums, tensors = self.side.sums()
            self.box.send_large({"replies": replies, **sums}, tensors)
        elif replies:
            self.box.send({"replies": replies})
        return True

    def _send_replies(self, replies: Iterable[Told]) -> list[dict[str, Any]]:
        """Send replies in their order, those without tensors as one message: every message wakes the other side.

        The last without tensors are returned: the sums can go with them.
        """
        waiting: list[dict[str, Any]] = []
        for reply, blocks in replies:
            if blocks and waiting:
                self.box.send({"replies": waiting})
                waiting = []
            if blocks:
                self.box.send({"replies": [reply]}, blocks)
            else:
                waiting.append(reply)
        return waiting
